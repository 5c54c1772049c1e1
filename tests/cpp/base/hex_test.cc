#include "base/hex.h"

#include <gtest/gtest.h>

namespace torch_ucc {
namespace {

TEST(Hex, ComesBackWhateverTheBytes) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    all += static_cast<char>(byte);
  }
  EXPECT_EQ(from_hex(to_hex(all)), all);
  EXPECT_EQ(to_hex("\x01\xfe"), "01fe");
}

TEST(Hex, KnowsWhatItIsNot) {
  EXPECT_FALSE(from_hex("0"));
  EXPECT_FALSE(from_hex("0g"));
  EXPECT_FALSE(from_hex("+1"));
  EXPECT_EQ(from_hex(""), "");
}

}  // namespace
}  // namespace torch_ucc
