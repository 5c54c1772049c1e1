#include "hosts/piece.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "fakes/faces.h"

namespace torch_ucc::hosts {
namespace {

using Kind = shm::Movement::Kind;

constexpr std::size_t kPiece = std::size_t{1} << 20U;

// One rank of a group that spans hosts. Nothing is started here, so the memory is never used.
class OneRank {
 public:
  // `host_of`: the host of each rank.
  OneRank(const std::vector<std::size_t>& host_of, std::size_t rank)
      : layout_(std::make_shared<Layout>(ByHost(host_of))), faces_(layout_->on(layout_->host_of(rank)).size()) {
    const std::size_t place = layout_->place_of(rank);
    std::shared_ptr<UccTeam> row;
    if (place < layout_->rows()) {
      row = std::make_shared<UccTeam>(5, std::vector<std::uint64_t>{0, 1}, 0, Bells{}, std::make_shared<FailureDomain>("group"));
    }
    levels_ = {layout_, layout_->host_of(rank), faces_.board(place), row, kPiece};
  }

  Cut cut(const shm::Movement& movement) const { return Cut(levels_, movement, {}); }
  // How many steps each stage of a piece has.
  std::vector<std::size_t> steps(const shm::Movement& movement, std::size_t number = 0) const {
    const Cut cut = this->cut(movement);
    const auto piece = cut.piece(number, levels_, movement, std::make_unique<char[]>(cut.room()));
    std::vector<std::size_t> found;
    for (const auto& stage : piece->steps) {
      found.push_back(stage.size());
    }
    return found;
  }

 private:
  const std::shared_ptr<const Layout> layout_;
  shm::Faces faces_;
  Levels levels_;
};

char* memory() {
  static std::vector<char> memory(8 * kPiece);
  return memory.data();
}
shm::Parts one(std::size_t bytes) { return shm::Parts(Part{memory(), bytes}); }
shm::Parts each(std::size_t ranks, std::size_t bytes) { return shm::Parts(std::vector<Part>(ranks, Part{memory(), bytes})); }

shm::Movement all_reduce(std::size_t bytes) {
  return {.kind = Kind::all_reduce, .sources = one(bytes), .destinations = one(bytes)};
}

const std::vector<std::size_t> kTwoByTwo{0, 0, 1, 1};

TEST(Piece, OfDataHasALimit) {
  const OneRank rank(kTwoByTwo, 0);
  EXPECT_EQ(rank.cut(all_reduce(1)).pieces(), 1U);
  EXPECT_EQ(rank.cut(all_reduce(kPiece)).pieces(), 1U);
  EXPECT_EQ(rank.cut(all_reduce(kPiece + 1)).pieces(), 2U);
  EXPECT_EQ(rank.cut(all_reduce(4 * kPiece)).pieces(), 4U);
  EXPECT_EQ(rank.cut({.kind = Kind::barrier}).pieces(), 1U);
}

// All slices of a piece together are about a piece. With many ranks, slices do not become shorter than 16 KB.
TEST(Piece, OfSlicesHasOneOfEachRank) {
  const auto gathers = [](std::size_t hosts, std::size_t per_host, std::size_t bytes) {
    std::vector<std::size_t> host_of;
    for (std::size_t rank = 0; rank < hosts * per_host; ++rank) {
      host_of.push_back(rank / per_host);
    }
    return OneRank(host_of, 0)
        .cut({.kind = Kind::all_gather, .sources = one(bytes), .destinations = each(host_of.size(), bytes)})
        .pieces();
  };
  EXPECT_EQ(gathers(2, 2, kPiece / 4), 1U);
  EXPECT_EQ(gathers(2, 2, kPiece), 4U);
  EXPECT_EQ(gathers(16, 8, kPiece), 64U);
  EXPECT_EQ(gathers(64, 8, kPiece), 64U);
}

// The memory that a rank needs does not grow with the ranks of a host, nor with the size of the data.
TEST(Piece, NeedsLittleMemory) {
  EXPECT_EQ(OneRank(kTwoByTwo, 0).cut(all_reduce(8 * kPiece)).room(), kPiece) << "half of a piece from each host";
  EXPECT_EQ(OneRank({0, 0, 1, 1, 2, 2}, 0).cut(all_reduce(8 * kPiece)).room(), kPiece / 2);
  EXPECT_EQ(OneRank(kTwoByTwo, 0).cut({.kind = Kind::broadcast, .sources = one(8 * kPiece)}).room(), kPiece / 2);
  EXPECT_EQ(OneRank(kTwoByTwo, 0).cut({.kind = Kind::barrier}).room(), 0U);
}

// A message for each row takes longer than its few bytes.
TEST(Piece, OfLittleDataUsesOneRow) {
  const std::vector<std::size_t> both{1, 1, 1};
  const std::vector<std::size_t> on_host_only{1, 0, 1};
  EXPECT_EQ(OneRank(kTwoByTwo, 0).steps(all_reduce(std::size_t{64} << 10U)), both);
  EXPECT_EQ(OneRank(kTwoByTwo, 1).steps(all_reduce(std::size_t{64} << 10U)), on_host_only);
  EXPECT_EQ(OneRank(kTwoByTwo, 1).steps(all_reduce(std::size_t{128} << 10U)), both);
  EXPECT_EQ(OneRank({0, 1, 1}, 2).steps(all_reduce(kPiece)), on_host_only) << "it is in no row";
  EXPECT_EQ(OneRank(kTwoByTwo, 1).steps({.kind = Kind::barrier}), on_host_only);
}

TEST(Piece, HasTheStepsOfItsKind) {
  using Steps = std::vector<std::size_t>;
  const OneRank here({0, 0, 1, 1, 2, 2}, 0);
  const OneRank there({0, 0, 1, 1, 2, 2}, 2);
  const shm::Movement gather{.kind = Kind::all_gather, .sources = one(kPiece), .destinations = each(6, kPiece)};
  const shm::Movement scatter{.kind = Kind::reduce_scatter, .sources = each(6, kPiece), .destinations = one(kPiece)};
  EXPECT_EQ(here.steps(gather), (Steps{1, 1, 2})) << "its own host first, then the others";
  EXPECT_EQ(here.steps(scatter), (Steps{3, 1, 0})) << "one for each host";
  EXPECT_EQ(here.steps({.kind = Kind::broadcast, .sources = one(kPiece)}), (Steps{2, 1, 0}));
  EXPECT_EQ(there.steps({.kind = Kind::broadcast, .destinations = one(kPiece)}), (Steps{0, 1, 1}));
  EXPECT_EQ(here.steps({.kind = Kind::reduce, .sources = one(kPiece), .destinations = one(kPiece)}), (Steps{1, 1, 1}));
  EXPECT_EQ(there.steps({.kind = Kind::reduce, .sources = one(kPiece)}), (Steps{1, 1, 0}));
}

TEST(Piece, IsReducedByUccOnlyWhereThatTakesFewerSteps) {
  for (const Kind kind : {Kind::all_reduce, Kind::reduce}) {
    EXPECT_FALSE(is_reduced_by_ucc(kind, 2));
    EXPECT_TRUE(is_reduced_by_ucc(kind, 3));
  }
  EXPECT_FALSE(is_reduced_by_ucc(Kind::reduce_scatter, 3));
}

}  // namespace
}  // namespace torch_ucc::hosts
