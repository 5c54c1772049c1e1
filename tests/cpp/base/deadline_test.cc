#include "base/deadline.h"

#include <gtest/gtest.h>

namespace torch_ucc {
namespace {

const Clock::time_point kNow = Clock::time_point(std::chrono::hours(1));

TEST(Deadline, PassesAtItsTimeAndNotBefore) {
  const Deadline deadline = Deadline::after(milliseconds(5), kNow);
  EXPECT_FALSE(deadline.passed(kNow + milliseconds(5) - Clock::duration(1)));
  EXPECT_TRUE(deadline.passed(kNow + milliseconds(5)));
}

TEST(Deadline, ByDefaultNeverPasses) {
  EXPECT_FALSE(Deadline().passed(Clock::time_point::max() - Clock::duration(1)));
  EXPECT_TRUE(Deadline::after(milliseconds(1), kNow) < Deadline());
}

TEST(Deadline, AfterTooLongADurationNeverPasses) {
  for (const Clock::duration forever : {Clock::duration::max(), Clock::time_point::max() - kNow}) {
    EXPECT_EQ(Deadline::after(forever, kNow).at(), Clock::time_point::max());
  }
}

TEST(Deadline, AfterNothingHasPassed) {
  EXPECT_TRUE(Deadline::after(milliseconds(0), kNow).passed(kNow));
  EXPECT_TRUE(Deadline::after(milliseconds(-3), kNow).passed(kNow));
}

TEST(Deadline, TimeLeftIsNeverNegative) {
  const Deadline deadline = Deadline::after(milliseconds(5), kNow);
  EXPECT_EQ(deadline.left(kNow), milliseconds(5));
  EXPECT_EQ(deadline.left(kNow + milliseconds(7)), Clock::duration::zero());
}

}  // namespace
}  // namespace torch_ucc
