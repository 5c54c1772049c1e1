#include "bootstrap/backoff.h"

#include <gtest/gtest.h>

#include "base/deadline.h"

namespace torch_ucc {
namespace {

// Only the lower bound: no load makes a sleep shorter.
TEST(Backoff, PausesGrow) {
  Backoff backoff;
  const Clock::time_point start = Clock::now();
  backoff.sleep();
  EXPECT_GE(Clock::now() - start, microseconds(200));
  for (int i = 0; i < 9; ++i) {
    backoff.sleep();
  }
  EXPECT_GE(Clock::now() - start, milliseconds(20));  // 0.2 * (1 + 1.5 + ... + 1.5^9) = 22.7 ms
}

TEST(Backoff, ManyRanksAskTheStoreLessOftenEach) {
  Backoff backoff(10000);
  const Clock::time_point start = Clock::now();
  backoff.sleep();
  EXPECT_GE(Clock::now() - start, milliseconds(10));
}

}  // namespace
}  // namespace torch_ucc
