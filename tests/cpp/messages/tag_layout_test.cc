#include "messages/tag_layout.h"

#include <gtest/gtest.h>

#include <set>

namespace torch_ucc {
namespace {

constexpr std::uint32_t kLargestTag = 0xffffffffU;
constexpr int kLastRank = TagLayout::kMaxRanks - 1;

// As UCX matches: the bits of the mask must be equal.
bool matches(std::uint64_t expected, std::uint64_t mask, std::uint64_t sent) { return (expected & mask) == (sent & mask); }

TEST(TagLayout, NothingLeavesItsBits) {
  EXPECT_EQ(TagLayout::pack(Space::user, 0, 0, kLargestTag), 0x00000000ffffffffU);
  EXPECT_EQ(TagLayout::pack(Space::user, 0, kLastRank, 0), 0x0000ffff00000000U);
  EXPECT_EQ(TagLayout::pack(Space::user, TagLayout::kMaxGroup, 0, 0), 0x7fff000000000000U);
  EXPECT_EQ(TagLayout::pack(Space::collective, 0, 0, 0), 0x8000000000000000U);
}

TEST(TagLayout, WhatDiffersInAnyPartIsAnotherMessage) {
  std::set<std::uint64_t> seen;
  for (const Space space : {Space::user, Space::collective}) {
    for (const int group : {1, 2, TagLayout::kMaxGroup}) {
      for (const int source : {0, 1, kLastRank}) {
        for (const std::uint32_t tag : {0U, 1U, kLargestTag}) {
          EXPECT_TRUE(seen.insert(TagLayout::pack(space, static_cast<std::uint16_t>(group), source, tag)).second);
        }
      }
    }
  }
}

TEST(TagLayout, TellsTheGroup) {
  for (const Space space : {Space::user, Space::collective}) {
    for (const std::uint16_t group : {std::uint16_t{0}, std::uint16_t{5}, static_cast<std::uint16_t>(TagLayout::kMaxGroup)}) {
      EXPECT_EQ(TagLayout::group_of(TagLayout::pack(space, group, TagLayout::kMaxRanks - 1, 0xffffffff)), group);
    }
  }
}

TEST(TagLayout, TellsTheSource) {
  for (const int source : {0, 1, 255, 256, kLastRank}) {
    EXPECT_EQ(TagLayout::source_of(TagLayout::pack(Space::collective, TagLayout::kMaxGroup, source, kLargestTag)), source);
    EXPECT_EQ(TagLayout::source_of(TagLayout::pack(Space::user, 1, source, 0)), source);
  }
}

TEST(TagLayout, AnySourceLeavesOutTheSourceAndNothingElse) {
  const std::uint64_t expected = TagLayout::pack(Space::user, 5, 0, 9);
  for (const int source : {0, 1, kLastRank}) {
    EXPECT_TRUE(matches(expected, TagLayout::kAnySource, TagLayout::pack(Space::user, 5, source, 9)));
    EXPECT_EQ(matches(expected, TagLayout::kExact, TagLayout::pack(Space::user, 5, source, 9)), source == 0);
    EXPECT_FALSE(matches(expected, TagLayout::kAnySource, TagLayout::pack(Space::collective, 5, source, 9)));
    EXPECT_FALSE(matches(expected, TagLayout::kAnySource, TagLayout::pack(Space::user, 4, source, 9)));
    EXPECT_FALSE(matches(expected, TagLayout::kAnySource, TagLayout::pack(Space::user, 5, source, 8)));
  }
}

}  // namespace
}  // namespace torch_ucc
