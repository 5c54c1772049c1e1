#include "progress/intake.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "fakes/fake_op.h"

namespace torch_ucc {
namespace {

TEST(Intake, GivesAllInTheOrderInWhichTheyCame) {
  Intake intake;
  EXPECT_TRUE(intake.empty());
  EXPECT_TRUE(intake.take_all().empty());
  const auto first = make_op({});
  const auto second = make_op({});
  intake.add(first);
  intake.add(second);
  EXPECT_FALSE(intake.empty());
  EXPECT_EQ(intake.take_all(), (std::vector<std::shared_ptr<Op>>{first, second}));
  EXPECT_TRUE(intake.empty());
}

TEST(Intake, LosesNothingWhereManyAddWhileOneTakes) {
  constexpr std::size_t kEach = 2000;
  constexpr std::size_t kThreads = 3;
  Intake intake;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&intake] {
      for (std::size_t n = 0; n < kEach; ++n) {
        intake.add(make_op({}));
      }
    });
  }
  std::size_t taken = 0;
  while (taken < kEach * kThreads) {
    taken += intake.take_all().size();
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(taken, kEach * kThreads);
  EXPECT_TRUE(intake.empty());
}

}  // namespace
}  // namespace torch_ucc
