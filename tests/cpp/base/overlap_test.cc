#include "base/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace torch_ucc {
namespace {

Region bytes(std::uintptr_t begin, std::size_t count) { return {.begin = begin, .item = count}; }

// Rows and columns of a matrix of 4-byte elements with 100 columns.
Region block(std::size_t row, std::size_t rows, std::size_t column, std::size_t columns) {
  return {.begin = 4 * (100 * row + column), .item = 4, .dims = {{rows, 400}, {columns, 4}}};
}

TEST(Overlap, OfPiecesOfMemory) {
  EXPECT_TRUE(overlap(bytes(100, 10), bytes(109, 1)));
  EXPECT_TRUE(overlap(bytes(109, 1), bytes(100, 10)));
  EXPECT_FALSE(overlap(bytes(100, 10), bytes(110, 10)));
  EXPECT_FALSE(overlap(bytes(110, 10), bytes(100, 10)));
  EXPECT_FALSE(overlap(bytes(100, 0), bytes(90, 20)));
}

TEST(Overlap, OfDifferentAddressSpaces) {
  Region there = bytes(100, 10);
  there.space = 1;
  EXPECT_FALSE(overlap(bytes(100, 10), there));
  EXPECT_TRUE(overlap(there, there));
}

TEST(Overlap, OfColumnsAndBlocksOfAMatrix) {
  EXPECT_FALSE(overlap(block(0, 50, 3, 1), block(0, 50, 4, 1)));
  EXPECT_TRUE(overlap(block(0, 50, 3, 1), block(49, 1, 0, 100)));
  EXPECT_FALSE(overlap(block(0, 50, 3, 1), block(50, 1, 0, 100)));
  EXPECT_FALSE(overlap(block(0, 50, 0, 4), block(0, 50, 4, 4)));
  EXPECT_TRUE(overlap(block(0, 50, 0, 5), block(0, 50, 4, 4)));
  EXPECT_FALSE(overlap(block(10, 10, 10, 10), block(0, 10, 0, 100)));
  EXPECT_TRUE(overlap(block(10, 10, 10, 10), bytes(4 * 1915, 20)));
  EXPECT_FALSE(overlap(block(10, 10, 10, 10), bytes(4 * 1920, 4 * 90)));
}

TEST(Overlap, OfEveryOtherElement) {
  const Region even{.begin = 0, .item = 4, .dims = {{1000000, 8}}};
  const Region odd{.begin = 4, .item = 4, .dims = {{1000000, 8}}};
  EXPECT_FALSE(overlap(even, odd));
  EXPECT_TRUE(overlap(even, even));
  EXPECT_TRUE(overlap(odd, bytes(12, 1)));
}

std::set<std::uintptr_t> addresses(const Region& region) {
  std::set<std::uintptr_t> all{region.begin};
  for (const Region::Dim& dim : region.dims) {
    std::set<std::uintptr_t> next;
    for (const std::uintptr_t each : all) {
      for (std::size_t i = 0; i < dim.size; ++i) {
        next.insert(each + i * dim.stride);
      }
    }
    all = next;
  }
  std::set<std::uintptr_t> every_byte;
  for (const std::uintptr_t each : all) {
    for (std::size_t i = 0; i < region.item; ++i) {
      every_byte.insert(each + i);
    }
  }
  return every_byte;
}

TEST(Overlap, IsWhatComparingEveryByteSays) {
  std::mt19937 random(1);
  const auto draw = [&](std::size_t from, std::size_t to) {
    return std::uniform_int_distribution<std::size_t>(from, to)(random);
  };
  const auto region = [&] {
    Region any{.begin = draw(0, 60), .item = std::size_t{1} << draw(0, 3)};
    for (std::size_t dims = draw(0, 3); dims != 0; --dims) {
      any.dims.push_back({draw(1, 5), draw(0, 40)});
    }
    return any;
  };
  int overlapping = 0;
  for (int i = 0; i < 5000; ++i) {
    const Region a = region();
    const Region b = region();
    const std::set<std::uintptr_t> of_a = addresses(a);
    const std::set<std::uintptr_t> of_b = addresses(b);
    const bool expected = std::any_of(of_a.begin(), of_a.end(), [&](std::uintptr_t each) { return of_b.count(each) != 0; });
    ASSERT_EQ(overlap(a, b), expected) << i;
    ASSERT_EQ(a.end(), *of_a.rbegin() + 1) << i;
    overlapping += expected ? 1 : 0;
  }
  EXPECT_GT(overlapping, 500);
  EXPECT_LT(overlapping, 4500);
}

}  // namespace
}  // namespace torch_ucc
