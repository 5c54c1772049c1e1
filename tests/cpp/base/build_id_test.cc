#include "base/build_id.h"

#include <gtest/gtest.h>

#include <string>

namespace torch_ucc {
namespace {

TEST(BuildId, IsTheVersionAndADigest) {
  const std::string id = build_id();
  const std::size_t dash = id.rfind('-');
  ASSERT_NE(dash, std::string::npos) << id;
  EXPECT_EQ(id.substr(0, dash).find_first_not_of("0123456789."), std::string::npos) << id;
  EXPECT_EQ(id.size() - dash - 1, 12U) << id;
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef", dash + 1), std::string::npos) << id;
}

}  // namespace
}  // namespace torch_ucc
