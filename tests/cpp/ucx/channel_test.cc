#include "ucx/channel.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fakes/ucx_job.h"

namespace torch_ucc {
namespace {

bool rings(const Bell& bell, const std::function<void()>& body) {
  Bell::Sleep sleep(bell);
  body();
  return sleep.wait(Clock::duration::zero());
}

// Rank 1 of 3, at positions 5, 1 and 0 of a context of 6. Rank 0 has a bell for us, rank 2 is on
// another host.
class ChannelTest : public testing::Test {
 protected:
  ~ChannelTest() override { destroy({&worker_}); }

  UcxWorker worker_;
  const Bell bell_;
  const std::shared_ptr<FailureDomain> domain_ = std::make_shared<FailureDomain>("group");
  const Channel channel_{worker_, 9, {{5, &bell_}, {1, nullptr}, {0, nullptr}}, 1, domain_};
};

TEST_F(ChannelTest, KnowsItsGroup) {
  EXPECT_EQ(channel_.rank(), 1);
  EXPECT_EQ(channel_.size(), 3);
  EXPECT_EQ(&channel_.domain(), domain_.get());
  EXPECT_EQ(&channel_.worker(), &worker_);
}

TEST_F(ChannelTest, ItsTagsAreThoseOfTheGroup) {
  EXPECT_EQ(channel_.tag_from(2, Space::collective, 4), TagLayout::pack(Space::collective, 9, 2, 4));
}

TEST_F(ChannelTest, RingsWhoeverHasABell) {
  EXPECT_TRUE(rings(bell_, [this] { channel_.ring(0); }));
  EXPECT_TRUE(rings(bell_, [this] { channel_.ring_all(); }));
  EXPECT_FALSE(rings(bell_, [this] {
    channel_.ring(1);
    channel_.ring(2);
  }));
}

TEST_F(ChannelTest, IsRungByThoseWhoHaveABellAndNeedsNoneForItself) {
  EXPECT_TRUE(channel_.rings(0));
  EXPECT_TRUE(channel_.rings(1));
  EXPECT_FALSE(channel_.rings(2));
}

TEST_F(ChannelTest, RanksAreFoundAtTheirPositionsInTheContext) {
  std::vector<UcxWorker> others(5);
  std::vector<std::string> addresses;
  for (const UcxWorker& other : others) {
    addresses.push_back(other.address());
  }
  addresses.insert(addresses.begin() + 1, worker_.address());
  worker_.set_peers(addresses);
  Engine engine(worker_, {});
  engine.with_baton(hard_limit(), [&](LoopToken& token) {
    EXPECT_EQ(channel_.endpoint(token, 0), worker_.endpoint(token, 5));
    EXPECT_EQ(channel_.endpoint(token, 1), worker_.endpoint(token, 1));
    EXPECT_EQ(channel_.endpoint(token, 2), worker_.endpoint(token, 0));
    EXPECT_NE(channel_.endpoint(token, 0), channel_.endpoint(token, 2));
  });
  for (UcxWorker& other : others) {
    destroy({&other});
  }
}

}  // namespace
}  // namespace torch_ucc
