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

TEST(Counters, AreApartByRoute) {
  CountersByRoute counters;
  counters[Route::ucc].called(40);
  counters[Route::messages].called(2);
  EXPECT_EQ(counters[Route::ucc].bytes(), 40U);
  EXPECT_EQ(counters[Route::messages].bytes(), 2U);
  EXPECT_EQ(counters[Route::store].calls(), 0U);
}

}  // namespace
}  // namespace torch_ucc::trace
