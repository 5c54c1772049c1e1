#include "progress/failure_domain.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace torch_ucc {
namespace {

TEST(FailureDomain, KeepsTheFirstFailure) {
  FailureDomain domain("group");
  EXPECT_FALSE(domain.failed());
  EXPECT_TRUE(domain.fail(Status(StatusCode::timeout, "first")));
  EXPECT_FALSE(domain.fail(Status(StatusCode::closed, "second")));
  EXPECT_TRUE(domain.failed());
  EXPECT_EQ(domain.failure().message(), "first");
}

TEST(FailureDomain, OneOfManyFailuresWins) {
  FailureDomain domain("group");
  std::atomic<int> winners{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { winners.fetch_add(domain.fail(Status(StatusCode::timeout, std::to_string(i))) ? 1 : 0); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(winners.load(), 1);
}

TEST(FailureDomain, TellsWhatItsObserverSees) {
  FailureDomain domain("group");
  EXPECT_EQ(domain.observe(), "");
  domain.set_observer([] { return std::string("rank 1 sleeps"); });
  EXPECT_EQ(domain.observe(), "rank 1 sleeps");
}

TEST(FailureDomain, TellsItsListenerOnce) {
  FailureDomain domain("group");
  int told = 0;
  domain.set_listener([&] { ++told; });
  EXPECT_EQ(told, 0);
  domain.fail(Status(StatusCode::timeout, "first"));
  domain.fail(Status(StatusCode::timeout, "second"));
  EXPECT_EQ(told, 1);
}

TEST(FailureDomain, TellsAListenerThatComesLate) {
  FailureDomain domain("group");
  domain.fail(Status(StatusCode::timeout, "first"));
  int told = 0;
  domain.set_listener([&] { ++told; });
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace torch_ucc
