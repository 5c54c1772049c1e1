#include "progress/scope.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace torch_ucc {
namespace {

TEST(Scope, KeepsTheFirstFailure) {
  Scope scope("group");
  EXPECT_FALSE(scope.failed());
  EXPECT_TRUE(scope.fail(Status(StatusCode::timeout, "first")));
  EXPECT_FALSE(scope.fail(Status(StatusCode::closed, "second")));
  EXPECT_TRUE(scope.failed());
  EXPECT_EQ(scope.failure().message(), "first");
}

TEST(Scope, OneOfManyFailuresWins) {
  Scope scope("group");
  std::atomic<int> winners{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { winners.fetch_add(scope.fail(Status(StatusCode::timeout, std::to_string(i))) ? 1 : 0); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(winners.load(), 1);
}

TEST(Scope, TellsWhatItsObserverSees) {
  Scope scope("group");
  EXPECT_EQ(scope.observe(), "");
  scope.set_observer([] { return std::string("rank 1 sleeps"); });
  EXPECT_EQ(scope.observe(), "rank 1 sleeps");
}

}  // namespace
}  // namespace torch_ucc
