// What is left to do before a worker is destroyed.
#include "ucx/flush_worker.h"

#include <gtest/gtest.h>

#include "fakes/messages_job.h"

namespace torch_ucc {
namespace {

// What has ended here needs nothing more from us to reach its peer, who looks for it when it likes.
TEST(FlushWorker, EndsWhenAllThatWasSentReachesThePeersWithoutUs) {
  constexpr std::size_t kCount = 200;
  UcxJob job(2);
  std::vector<Bytes> sent;
  std::vector<Bytes> got(kCount, Bytes(4000));
  for (std::size_t i = 0; i < kCount; ++i) {
    sent.push_back(pattern(4000, static_cast<int>(i)));
    job.post(0, {send_to(1, sent.back())});
  }
  job.post(1, {receive_from(0, got[0])});
  const auto flush = std::make_shared<FlushWorker>(job.worker(0), job.domain(0));
  job.post_op(0, flush);
  ASSERT_TRUE(job.finish());
  EXPECT_TRUE(flush->completion().status().ok());
  EXPECT_EQ(&flush->domain(), &job.domain(0));
  for (std::size_t i = 1; i < kCount; ++i) {  // rank 0 has nothing in flight: it drives nothing
    job.post(1, {receive_from(0, got[i])});
  }
  ASSERT_TRUE(job.finish());
  EXPECT_TRUE(got == sent);
}

TEST(FlushWorker, OfAWorkerThatSentNothingEndsAtOnce) {
  UcxJob job(1);
  const auto flush = std::make_shared<FlushWorker>(job.worker(0), job.domain(0));
  job.post_op(0, flush);
  ASSERT_TRUE(job.finish(*flush));
  EXPECT_TRUE(flush->completion().status().ok());
}

}  // namespace
}  // namespace torch_ucc
