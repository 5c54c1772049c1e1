#include "base/random.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

namespace torch_ucc {
namespace {

TEST(Random, UsesAllBitsAndDoesNotRepeatItself) {
  constexpr int kDraws = 100;
  std::set<std::uint64_t> drawn;
  std::uint64_t ones = 0;
  std::uint64_t zeros = 0;
  for (int i = 0; i < kDraws; ++i) {
    const std::uint64_t number = random_number();
    drawn.insert(number);
    ones |= number;
    zeros |= ~number;
  }
  EXPECT_EQ(drawn.size(), static_cast<std::size_t>(kDraws));
  EXPECT_EQ(ones & zeros, ~std::uint64_t{0});
}

}  // namespace
}  // namespace torch_ucc
