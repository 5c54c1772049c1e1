#include "trace/counters.h"

#include <gtest/gtest.h>

namespace torch_ucc::trace {
namespace {

TEST(Counters, AddUp) {
  Counters counters;
  counters.called(40);
  counters.called(2);
  counters.waited(microseconds(3));
  counters.waited(microseconds(4));
  EXPECT_EQ(counters.calls(), 2U);
  EXPECT_EQ(counters.bytes(), 42U);
  EXPECT_EQ(counters.waited_ns(), 7000U);
}

}  // namespace
}  // namespace torch_ucc::trace
