#include "base/interrupt.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace torch_ucc {
namespace {

TEST(Interrupt, IsNothingUntilSomebodyKnowsHow) { EXPECT_NO_THROW(check_interrupt()); }

TEST(Interrupt, ThrowsWhatTheCheckThrows) {
  interrupt_check.store([] { throw std::runtime_error("enough"); });
  EXPECT_THROW(check_interrupt(), std::runtime_error);
  interrupt_check.store(nullptr);
}

}  // namespace
}  // namespace torch_ucc
