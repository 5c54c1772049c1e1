#include "progress/napper.h"

#include <gtest/gtest.h>

namespace torch_ucc {
namespace {

using Act = Napper::Act;

constexpr microseconds kNap = Napper::kNap;
constexpr microseconds kGrace = Napper::kGrace;

void expect_nap(const Napper::Step& step, microseconds duration, bool can_be_roused) {
  EXPECT_EQ(step.act, Act::nap);
  EXPECT_EQ(step.duration, Clock::duration(duration));
  EXPECT_EQ(step.can_be_roused, can_be_roused);
}

TEST(Napper, SleepsWhereNothingIsToDo) {
  Napper napper;
  EXPECT_EQ(napper.next({}).act, Act::sleep);
}

TEST(Napper, GivesACallerAMomentToComeBackThenDrives) {
  Napper napper;
  expect_nap(napper.next({.left = 1, .work = true}), kGrace, false);
  EXPECT_EQ(napper.next({.left = 1, .work = true}).act, Act::drive);
  EXPECT_TRUE(napper.drives());
}

TEST(Napper, DrivesAtOnceWhereItIsWanted) {
  Napper napper;
  EXPECT_EQ(napper.next({.left = 1, .wanted = true, .work = true}).act, Act::drive);
}

TEST(Napper, WantedInVainItSleeps) {
  Napper napper;
  EXPECT_EQ(napper.next({.left = 1, .wanted = true}).act, Act::sleep);
}

TEST(Napper, AfterTheGraceItDrivesWhatIsLeftToBeStarted) {
  Napper napper;
  napper.next({.left = 1, .work = true});
  EXPECT_EQ(napper.next({.left = 2, .work = true, .intake = true}).act, Act::drive);
}

TEST(Napper, WhileItDrivesItTakesWhatIsNewOnlyIfItIsToBeStarted) {
  for (const bool intake : {true, false}) {
    Napper napper;
    napper.next({.left = 1, .wanted = true, .work = true});
    EXPECT_EQ(napper.next({.left = 1, .work = true}).act, Act::drive);
    EXPECT_EQ(napper.next({.left = 2, .work = true, .intake = intake}).act, intake ? Act::drive : Act::nap);
  }
}

TEST(Napper, AfterItsLastWorkItNapsTwentyTimesThenSleeps) {
  Napper napper;
  napper.next({.left = 1, .wanted = true, .work = true});
  for (int i = 0; i < Napper::kNapsBeforeSleep; ++i) {
    expect_nap(napper.next({.left = 1}), kNap, true);
  }
  EXPECT_EQ(napper.next({.left = 1}).act, Act::sleep);
}

TEST(Napper, NapsDoubleWhileCallersComeBack) {
  Napper napper;
  std::uint64_t left = 1;
  napper.next({.left = left, .wanted = true, .work = true});
  for (microseconds expected = kNap; expected < Napper::kLongestNap; expected *= 2) {
    expect_nap(napper.next({.left = left++}), expected, true);
  }
  expect_nap(napper.next({.left = left++}), Napper::kLongestNap, true);
  expect_nap(napper.next({.left = left}), Napper::kLongestNap, true);
  expect_nap(napper.next({.left = left}), kNap, true);
}

TEST(Napper, CallersWhoComeBackKeepItAwake) {
  Napper napper;
  for (std::uint64_t left = 1; left < 3 * Napper::kNapsBeforeSleep; ++left) {
    EXPECT_EQ(napper.next({.left = left, .work = true}).act, Act::nap);
  }
}

TEST(Napper, BesideAHolderOfTheBatonItNapsLongerAndLonger) {
  Napper napper;
  const Napper::Sight busy{.left = 1, .wanted = true, .work = true, .held = false};
  EXPECT_EQ(napper.next({.left = 1, .wanted = true, .work = true}).act, Act::drive);
  for (microseconds expected = kNap; expected < Napper::kLongestNapBesideWork; expected *= 2) {
    expect_nap(napper.next(busy), expected, true);
    EXPECT_EQ(napper.next(busy).act, Act::drive);
  }
  expect_nap(napper.next(busy), Napper::kLongestNapBesideWork, true);
  EXPECT_EQ(napper.next(busy).act, Act::drive);
  EXPECT_EQ(napper.next({.left = 1, .work = true}).act, Act::drive);  // it had the baton
  expect_nap(napper.next({.left = 1}), kNap, true);
}

}  // namespace
}  // namespace torch_ucc
