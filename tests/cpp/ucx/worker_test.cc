#include "ucx/worker.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "fakes/messages_job.h"

namespace torch_ucc {
namespace {

// Two workers and one engine, whose baton is as good for both.
class UcxWorkerTest : public testing::Test {
 protected:
  ~UcxWorkerTest() override { destroy({&worker_, &peer_}); }
  void with_baton(const std::function<void(LoopToken&)>& body) { ASSERT_TRUE(engine_.with_baton(hard_limit(), body)); }

  UcxWorker worker_;
  UcxWorker peer_;
  Engine engine_{worker_, {}};
};

TEST_F(UcxWorkerTest, HasAnAddressOfItsOwn) {
  EXPECT_FALSE(worker_.address().empty());
  EXPECT_EQ(worker_.address(), worker_.address());
  EXPECT_NE(worker_.address(), peer_.address());
}

TEST_F(UcxWorkerTest, KnowsTheMemoryThatItTakes) {
  EXPECT_EQ(worker_.memory_type("host"), UCS_MEMORY_TYPE_HOST);
  EXPECT_EQ(worker_.memory_type("gaudi"), std::nullopt);  // of which no module is shipped
  EXPECT_EQ(worker_.memory_type("no such memory"), std::nullopt);
}

TEST_F(UcxWorkerTest, MakesOneEndpointAPeer) {
  worker_.set_peers({worker_.address(), peer_.address()});
  with_baton([this](LoopToken& token) {
    ucp_ep_h const to_itself = worker_.endpoint(token, 0);
    ucp_ep_h const to_peer = worker_.endpoint(token, 1);
    EXPECT_NE(to_itself, nullptr);
    EXPECT_NE(to_peer, nullptr);
    EXPECT_NE(to_itself, to_peer);
    EXPECT_EQ(worker_.endpoint(token, 0), to_itself);
    EXPECT_EQ(worker_.endpoint(token, 1), to_peer);
  });
}

TEST_F(UcxWorkerTest, APeerThatCannotBeReachedIsAnErrorOfItsOwnEachTime) {
  worker_.set_peers({unreachable_address(), peer_.address()});
  with_baton([this](LoopToken& token) {
    for (int i = 0; i < 2; ++i) {
      try {
        worker_.endpoint(token, 0);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const StatusError& error) {
        EXPECT_EQ(error.status().code(), StatusCode::transport);
        EXPECT_EQ(error.status().message().rfind("ucp_ep_create: UCX says '", 0), 0U) << error.what();
      }
    }
    EXPECT_NE(worker_.endpoint(token, 1), nullptr);
  });
}

TEST_F(UcxWorkerTest, KnowsNobodyElse) {
  worker_.set_peers({worker_.address()});
  with_baton([this](LoopToken& token) { EXPECT_THROW(worker_.endpoint(token, 1), std::out_of_range); });
}

TEST_F(UcxWorkerTest, CountsWhatIsUnderWay) {
  with_baton([this](LoopToken& token) {
    EXPECT_EQ(worker_.outstanding(token), 0U);
    worker_.count_posted(token);
    worker_.count_posted(token);
    worker_.count_ended();
    EXPECT_EQ(worker_.outstanding(token), 1U);
    worker_.count_ended();
    EXPECT_EQ(worker_.outstanding(token), 0U);
  });
}

TEST_F(UcxWorkerTest, IsDestroyedOnce) {
  worker_.set_peers({worker_.address(), peer_.address()});
  with_baton([this](LoopToken& token) {
    worker_.endpoint(token, 1);
    worker_.destroy(token);
    EXPECT_EQ(worker_.handle(token), nullptr);
    worker_.destroy(token);
  });
}

class UcxNotes : public testing::TestWithParam<const char*> {};

TEST_P(UcxNotes, ComeInTheirOrderToWhoeverLooks) {
  const char* const threshold = "UCC_UCX_RNDV_THRESH";
  ::setenv(threshold, GetParam(), 1);  // NOLINT(concurrency-mt-unsafe): no other thread of a test reads the environment
  UcxJob job(2);
  ::unsetenv(threshold);  // NOLINT(concurrency-mt-unsafe): as above
  std::vector<Bytes> texts{Bytes(TagLayout::kMaxNote, 'a'), Bytes(3, 'b')};
  job.post_notes(texts);
  std::vector<std::string> taken;
  for (const Deadline limit = hard_limit(); taken.size() < texts.size() && !limit.passed();) {
    job.drive();
    job.engine(1).with_baton(limit, [&](LoopToken& token) {
      EXPECT_TRUE(job.worker(1).progress(token).ok());
      if (auto note = job.worker(1).take_note(token)) {
        taken.push_back(*std::move(note));
      }
    });
  }
  EXPECT_EQ(taken, (std::vector<std::string>{std::string(TagLayout::kMaxNote, 'a'), "bbb"}));
  EXPECT_TRUE(job.finish());
  job.engine(1).with_baton(hard_limit(), [&](LoopToken& token) { EXPECT_FALSE(job.worker(1).take_note(token)); });
}

// Whole, and by a rendezvous with the sender.
INSTANTIATE_TEST_SUITE_P(All, UcxNotes, testing::Values("inf", "0"));

std::ptrdiff_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

TEST(UcxWorker, LeavesNothingBehindIfItWasNeverUsed) {
  { const UcxWorker first; }  // what UCX opens once
  const std::ptrdiff_t before = open_descriptors();
  { const UcxWorker worker; }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(UcxWorkerTest, IsDestroyedBesideStuckPeersOnlyIfItWasNeverUsed) {
  worker_.set_peers({worker_.address(), peer_.address()});
  peer_.set_peers({worker_.address(), peer_.address()});
  with_baton([this](LoopToken& token) {
    worker_.endpoint(token, 1);
    worker_.destroy_if_unused(token);
    EXPECT_NE(worker_.handle(token), nullptr);
    peer_.destroy_if_unused(token);
    EXPECT_EQ(peer_.handle(token), nullptr);
  });
}

}  // namespace
}  // namespace torch_ucc
