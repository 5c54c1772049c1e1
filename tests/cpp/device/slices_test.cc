#include "device/slices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>

namespace torch_ucc {
namespace {

constexpr std::size_t kMost = 64;

Pieces pieces_of(std::size_t total, std::size_t count) { return {.total = total, .count = count, .element_size = 4}; }

TEST(SlicesTest, AnOperationInOnePieceIsNotCut) {
  EXPECT_FALSE(Slices::of(pieces_of(100, 0), 1, kMost));
  EXPECT_FALSE(Slices::of(pieces_of(100, 100), 1, kMost));
}

TEST(SlicesTest, SoManyPartsThatTwoSlicesAreTooManyCopiesAreNotCut) {
  EXPECT_TRUE(Slices::of(pieces_of(100, 10), kMost / 2, kMost));
  EXPECT_FALSE(Slices::of(pieces_of(100, 10), kMost / 2 + 1, kMost));
  EXPECT_FALSE(Slices::of(pieces_of(100, 10), kMost + 1, kMost));
}

TEST(SlicesTest, FewPiecesAreASliceEach) {
  const auto slices = Slices::of(pieces_of(100, 30), 1, kMost);  // 30, 30, 30 and 10
  ASSERT_TRUE(slices);
  EXPECT_EQ(slices->number, 4U);
  EXPECT_EQ(slices->offset_of(3), 360U);
  EXPECT_EQ(slices->bytes_of(3), 40U);
}

// For every way to cut: the slices are all bytes of a part, once; as many as there are copies for;
// and a piece has all its bytes in the slices up to its own.
TEST(SlicesTest, MakeUpTheWhole) {
  for (const std::size_t total : {2U, 63U, 64U, 65U, 100U, 1000U, 4097U}) {
    for (const std::size_t count : {1U, 2U, 7U, 64U, 999U}) {
      for (const std::size_t parts : {1U, 2U, 3U, 20U, 32U}) {
        const Pieces pieces = pieces_of(total, count);
        const auto slices = Slices::of(pieces, parts, kMost);
        if (!slices) {
          EXPECT_LT(std::min(pieces.number(), kMost / parts), 2U);
          continue;
        }
        SCOPED_TRACE(testing::Message() << total << " in pieces of " << count << ", " << parts << " parts");
        EXPECT_LE(slices->number * parts, kMost);
        std::size_t bytes = 0;
        for (std::size_t slice = 0; slice < slices->number; ++slice) {
          EXPECT_EQ(slices->offset_of(slice), bytes);
          EXPECT_GT(slices->bytes_of(slice), 0U);
          bytes += slices->bytes_of(slice);
        }
        EXPECT_EQ(bytes, total * pieces.element_size);
        std::size_t ended = 0;
        for (std::size_t piece = 0; piece < pieces.number(); ++piece) {
          const std::size_t slice = slices->of_piece(piece);
          const std::size_t end = pieces.offset_of(piece) + pieces.length_of(piece) * pieces.element_size;
          EXPECT_LE(end, slices->offset_of(slice) + slices->bytes_of(slice));
          if (slices->end_with(piece)) {
            EXPECT_EQ(end, slices->offset_of(slice) + slices->bytes_of(slice));
            EXPECT_EQ(slice, ended++);
          }
        }
        EXPECT_EQ(ended, slices->number);
      }
    }
  }
}

}  // namespace
}  // namespace torch_ucc
