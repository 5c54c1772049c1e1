#include "base/named_values.h"

#include <gtest/gtest.h>

#include <string>

#include "base/status.h"

namespace torch_ucc {
namespace {

TEST(NamedValues, SurviveTheStore) {
  for (const NamedValues& values :
       {NamedValues(), NamedValues{{"id", "3"}}, NamedValues{{"b", "2 'x'"}, {"a", ""}, {"b", "\n"}}}) {
    EXPECT_EQ(decode_values(encode_values(values)), values);
  }
}

TEST(NamedValues, AnotherTextIsRefused) {
  const std::string good = encode_values({{"id", "3"}});
  for (const std::string& bad : {std::string("id"), good.substr(0, good.size() - 1), good + "x", good.substr(3)}) {
    EXPECT_THROW(decode_values(bad), StatusError) << bad;
  }
}

TEST(NamedValues, AValueIsTakenByItsPlaceAndName) {
  const NamedValues values{{"id", "3"}, {"port", "9"}};
  EXPECT_EQ(value_at(values, 1, "port"), "9");
  EXPECT_THROW(value_at(values, 0, "port"), StatusError);
  EXPECT_THROW(value_at(values, 2, "port"), StatusError);
}

}  // namespace
}  // namespace torch_ucc
