#include "trace/json.h"

#include <gtest/gtest.h>

namespace torch_ucc::trace {
namespace {

TEST(Json, EscapesWhatTextsMayContain) {
  EXPECT_EQ(json_text("a \"b\" \\ \n\x01"), R"("a \"b\" \\ \u000a\u0001")");
  EXPECT_EQ(json_text(""), R"("")");
}

TEST(Json, PutsCommasBetweenItems) {
  EXPECT_EQ(Json('{').end(), "{}");
  EXPECT_EQ(Json('[').item("1").item("2").end(), "[1,2]");
  EXPECT_EQ(Json('{').number("n", 3).text("t", "x").field("f", "[]").end(), R"({"n":3,"t":"x","f":[]})");
}

TEST(Json, WritesRanksAsRuns) {
  EXPECT_EQ(runs_of({}), R"("")");
  EXPECT_EQ(runs_of({4}), R"("4")");
  EXPECT_EQ(runs_of({0, 1, 2, 3}), R"("0-3")");
  EXPECT_EQ(runs_of({0, 2, 4, 6, 9}), R"("0-6:2,9")");
  EXPECT_EQ(runs_of({0, 1}), R"("0,1")");
  EXPECT_EQ(runs_of({5, 3, 1}), R"("5,3,1")");
  EXPECT_EQ(runs_of({3, 0, 1, 2, 7}), R"("3,0-2,7")");
}

}  // namespace
}  // namespace torch_ucc::trace
