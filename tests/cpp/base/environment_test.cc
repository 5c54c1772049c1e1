#include "base/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace torch_ucc {
namespace {

TEST(TemporaryEnvironment, SetsVariablesAndTakesThemBack) {
  ::setenv("TEST_OF_USER", "kept", 1);
  ::unsetenv("TEST_OF_PLAN");
  {
    const TemporaryEnvironment variables({"TEST_OF_"}, {{"USER", "changed"}, {"PLAN", "told"}, {"PLAN", "again"}});
    EXPECT_STREQ(std::getenv("TEST_OF_USER"), "changed");
    EXPECT_STREQ(std::getenv("TEST_OF_PLAN"), "again");
  }
  EXPECT_STREQ(std::getenv("TEST_OF_USER"), "kept");
  EXPECT_EQ(std::getenv("TEST_OF_PLAN"), nullptr);
  ::unsetenv("TEST_OF_USER");
}

TEST(TemporaryEnvironment, SetsEachValueUnderEveryPrefix) {
  ::setenv("TEST_OF_ONE_SIZE", "kept", 1);
  ::unsetenv("TEST_OF_TWO_SIZE");
  {
    const TemporaryEnvironment variables({"TEST_OF_ONE_", "TEST_OF_TWO_"}, {{"SIZE", "64k"}});
    EXPECT_STREQ(std::getenv("TEST_OF_ONE_SIZE"), "64k");
    EXPECT_STREQ(std::getenv("TEST_OF_TWO_SIZE"), "64k");
  }
  EXPECT_STREQ(std::getenv("TEST_OF_ONE_SIZE"), "kept");
  EXPECT_EQ(std::getenv("TEST_OF_TWO_SIZE"), nullptr);
  ::unsetenv("TEST_OF_ONE_SIZE");
}

TEST(TemporaryEnvironment, WhatWasSetToNothingIsAgain) {
  ::setenv("TEST_OF_EMPTY", "", 1);
  { const TemporaryEnvironment variables({"TEST_OF_"}, {{"EMPTY", "told"}}); }
  EXPECT_STREQ(std::getenv("TEST_OF_EMPTY"), "");
  ::unsetenv("TEST_OF_EMPTY");
}

}  // namespace
}  // namespace torch_ucc
