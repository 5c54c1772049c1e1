#include "progress/parker.h"

#include <gtest/gtest.h>

namespace torch_ucc {
namespace {

using Step = Parker::Step;
const Clock::time_point kStart = Clock::time_point(std::chrono::hours(1));

ParkPolicy policy() {
  return {.spin = microseconds(200),
          .yield = microseconds(2000),
          .pause_min = microseconds(20),
          .pause_max = microseconds(1000),
          .pause_max_rung = microseconds(10000),
          .polls_per_round = 32};
}

TEST(Parker, SpinsThenYieldsThenPauses) {
  Parker parker(policy(), kStart);
  EXPECT_EQ(parker.next(kStart), Step::poll_again);
  EXPECT_EQ(parker.next(kStart + microseconds(199)), Step::poll_again);
  EXPECT_EQ(parker.next(kStart + microseconds(200)), Step::yield);
  EXPECT_EQ(parker.next(kStart + microseconds(2199)), Step::yield);
  EXPECT_EQ(parker.next(kStart + microseconds(2200)), Step::pause);
  EXPECT_EQ(parker.next(kStart + std::chrono::hours(1)), Step::pause);
}

TEST(Parker, PollsLessTheLongerItWaits) {
  Parker parker(policy(), kStart);
  EXPECT_EQ(parker.polls(), 32);
  parker.next(kStart);
  EXPECT_EQ(parker.polls(), 32);
  parker.next(kStart + microseconds(200));
  const int yielding = parker.polls();
  EXPECT_LT(yielding, 32);
  parker.next(kStart + milliseconds(10));
  EXPECT_LT(parker.polls(), yielding);
  EXPECT_GE(parker.polls(), 1);
}

TEST(Parker, PausesGrowFromTheShortestToTheLongestAndStayThere) {
  Parker parker(policy(), kStart);
  microseconds last = parker.take_pause();
  EXPECT_EQ(last, microseconds(20));
  int steps = 0;
  while (last < microseconds(1000)) {
    const microseconds pause = parker.take_pause();
    ASSERT_GT(pause, last);
    ASSERT_LT(++steps, 100);
    last = pause;
  }
  EXPECT_EQ(last, microseconds(1000));
  EXPECT_EQ(parker.take_pause(), microseconds(1000));
}

TEST(Parker, PausesLongerWhereTheOtherRings) {
  Parker parker(policy(), kStart);
  for (int i = 0; i < 100; ++i) {
    parker.take_pause(true);
  }
  EXPECT_EQ(parker.take_pause(true), microseconds(10000));
}

TEST(Parker, StartsOverWhenSomethingHappened) {
  Parker parker(policy(), kStart);
  const Clock::time_point later = kStart + milliseconds(10);
  EXPECT_EQ(parker.next(later), Step::pause);
  const microseconds first = parker.take_pause();
  parker.restart(later);
  EXPECT_EQ(parker.polls(), 32);
  EXPECT_EQ(parker.next(later), Step::poll_again);
  EXPECT_EQ(parker.next(later + microseconds(300)), Step::yield);
  EXPECT_EQ(parker.take_pause(), first);
}

TEST(Parker, PatienceProlongsTheYielding) {
  Parker parker(policy(), kStart);
  parker.set_patience(milliseconds(100));
  EXPECT_EQ(parker.next(kStart + milliseconds(102)), Step::yield);
  EXPECT_EQ(parker.next(kStart + milliseconds(103)), Step::pause);
}

TEST(Parker, PausesGrowFromZeroToo) {
  ParkPolicy from_zero = policy();
  from_zero.pause_min = microseconds(0);
  Parker parker(from_zero, kStart);
  EXPECT_EQ(parker.take_pause(), microseconds(0));
  EXPECT_GT(parker.take_pause(), microseconds(0));
}

TEST(Parker, PollsThatMoveDataMakeTheNextPauseShortAgain) {
  Parker parker(policy(), kStart);
  EXPECT_FALSE(parker.moves(policy().moving - microseconds(1)));
  for (int i = 0; i < 3; ++i) {
    parker.take_pause();
  }
  EXPECT_TRUE(parker.moves(policy().moving));
  EXPECT_TRUE(parker.moves(policy().moving));
  EXPECT_EQ(parker.take_pause(), policy().pause_min);
}

TEST(Parker, ASingleSlowPollBetweenTwoPausesLeavesTheirLengthAlone) {
  Parker parker(policy(), kStart);
  microseconds pause{0};
  for (int i = 0; i < 30; ++i) {
    EXPECT_TRUE(parker.moves(policy().moving));
    EXPECT_FALSE(parker.moves(policy().moving - microseconds(1)));
    pause = parker.take_pause();
  }
  EXPECT_EQ(pause, policy().pause_max);
}

TEST(Parker, WithoutSpinYieldsFromTheStart) {
  ParkPolicy shared = policy();
  shared.spin = microseconds(0);
  Parker parker(shared, kStart);
  EXPECT_EQ(parker.next(kStart), Step::yield);
}

TEST(Parker, WhoGivesWayNeitherSpinsNorYieldsUntilThen) {
  Parker parker(policy(), kStart);
  parker.give_way(kStart + milliseconds(50));
  EXPECT_EQ(parker.next(kStart), Step::pause);
  EXPECT_EQ(parker.polls(), 1);
  parker.restart(kStart + milliseconds(49));
  EXPECT_EQ(parker.next(kStart + milliseconds(49)), Step::pause);
  parker.restart(kStart + milliseconds(50));
  EXPECT_EQ(parker.next(kStart + milliseconds(50)), Step::poll_again);
}

TEST(FitToCores, LeavesThePolicyAloneWhileThereIsACoreForEveryRank) {
  const ParkPolicy fitted = fit_to_cores(policy(), 4, 4);
  EXPECT_EQ(fitted.spin, policy().spin);
  EXPECT_EQ(fitted.polls_per_round, policy().polls_per_round);
}

TEST(FitToCores, BackgroundThreadsKeepToTheirRanksCoreWhereNoneIsToSpare) {
  EXPECT_FALSE(fit_to_cores(policy(), 3, 4).beside_caller);
  EXPECT_TRUE(fit_to_cores(policy(), 4, 4).beside_caller);
  EXPECT_TRUE(fit_to_cores(policy(), 5, 4).beside_caller);
}

TEST(FitToCores, NobodySpinsWhenRanksOutnumberCores) {
  const ParkPolicy fitted = fit_to_cores(policy(), 3, 2);
  EXPECT_EQ(fitted.spin, microseconds(0));
  EXPECT_LT(fitted.polls_per_round, policy().polls_per_round);
  EXPECT_EQ(fitted.yield, policy().yield);
}

TEST(FitToCores, WhereManyShareACoreALongYieldIsNoSignOfSomebodyWhoComputes) {
  for (const int ranks : {2, 4, 5}) {
    EXPECT_EQ(fit_to_cores(policy(), ranks, 2).crowded_yield, policy().crowded_yield) << ranks;
  }
  EXPECT_EQ(fit_to_cores(policy(), 16, 2).crowded_yield, policy().crowded_yield * 4);
}

}  // namespace
}  // namespace torch_ucc
