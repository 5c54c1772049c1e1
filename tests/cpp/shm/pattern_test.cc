#include "shm/pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <ostream>
#include <set>
#include <utility>
#include <vector>

#include "shm/arena.h"

namespace torch_ucc::shm {
namespace {

using Kind = Movement::Kind;
using Bytes = std::vector<std::uint8_t>;
using Sizes = std::vector<std::size_t>;

// The work of one rank in one collective.
struct Work {
  std::uint64_t steps = 0;
  std::size_t flags = 0;    // how often it waits until a peer has entered a step
  std::size_t copied = 0;   // bytes that it copies to its slots or lines
  std::size_t read = 0;     // bytes of peers that it copies or reduces
  std::size_t own = 0;      // bytes of its own sources that it stores or reduces
  std::size_t reduced = 0;  // bytes that it reduces to its slots
  std::size_t stored = 0;   // bytes that it writes to its destinations

  bool operator==(const Work&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Work& work) {
  return out << work.steps << " steps, " << work.flags << " flags, " << work.copied << " bytes copied to slots, " << work.read
             << " read of peers, " << work.own << " of its own, " << work.reduced << " reduced to slots, " << work.stored
             << " stored";
}

// Asks the pattern of one rank for its steps, and plays the peers. Memory that the rank may write
// holds kUntouched before, and memory that it may read holds zeros or ones. So the bytes that have
// changed are what the rank has written, and their sum is how many ones it has copied or reduced.
class Stage {
 public:
  Stage(std::size_t ranks, std::size_t rank)
      : ranks_(ranks), rank_(rank), slot_bytes_(Arena::slot_bytes(ranks)), own_(slot_bytes_) {
    // Many peers have one memory, in which each gives the same.
    for (std::size_t peer = 0; peer < (ranks <= kFew ? ranks : 1); ++peer) {
      peers_.emplace_back(slot_bytes_);
    }
    std::vector<Board::Place> places;
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      places.push_back(peer == rank ? own_.place() : memory_of(peer).place());
    }
    board_ = std::make_unique<Board>(std::move(places), static_cast<int>(rank), slot_bytes_, Bells{},
                                     std::make_shared<FailureDomain>("group"));
  }

  // `gives` and `takes` are the bytes of the sources and destinations.
  Work work(Kind kind, std::size_t root, const Sizes& gives, const Sizes& takes) {
    const auto [of_peers, ones_of_peers] = run(kind, root, gives, takes, /*peers_give=*/1, /*rank_gives=*/0);
    auto [work, ones] = run(kind, root, gives, takes, /*peers_give=*/0, /*rank_gives=*/1);
    EXPECT_EQ(work, of_peers);
    work.read = ones_of_peers;
    work.own = ones;
    return work;
  }

 private:
  static constexpr std::size_t kFew = 8;
  static constexpr std::uint8_t kUntouched = 0xfe;  // no sum of ones of 2, 3, ..., or 256 ranks

  struct Memory {
    explicit Memory(std::size_t slot_bytes) : slots(kDepth * slot_bytes) {}
    Board::Place place() { return {&face, reinterpret_cast<char*>(slots.data()), &state}; }
    void fill(std::uint8_t value) {
      std::fill(slots.begin(), slots.end(), value);
      for (Line& line : face.lines) {
        line.small.fill(static_cast<std::byte>(value));
      }
    }

    Face face;
    Bytes slots;
    std::atomic<State> state{State::open};
  };
  Memory& memory_of(std::size_t peer) { return peers_[peer % peers_.size()]; }

  static std::vector<Bytes> filled(const Sizes& sizes, std::uint8_t value) {
    std::vector<Bytes> all;
    for (const std::size_t size : sizes) {
      all.emplace_back(size, value);
    }
    return all;
  }
  static Parts parts(std::vector<Bytes>& all, bool is_list) {
    std::vector<Part> each;
    for (Bytes& bytes : all) {
      each.push_back({bytes.data(), bytes.size()});
    }
    return is_list ? Parts(std::move(each)) : each.empty() ? Parts() : Parts(each.front());
  }
  // How many bytes were written, and how many ones they hold.
  struct Written {
    std::size_t bytes = 0;
    std::size_t ones = 0;
  };
  static Written written(const void* data, std::size_t bytes) {
    constexpr std::size_t kBlock = 4096;  // most blocks hold one value only
    Written found;
    const auto* const begin = static_cast<const std::uint8_t*>(data);
    for (std::size_t at = 0; at < bytes; at += kBlock) {
      const std::uint8_t* const block = begin + at;
      const std::size_t size = std::min(kBlock, bytes - at);
      const bool is_even = std::memcmp(block, block + 1, size - 1) == 0;
      for (std::size_t i = 0; i < (is_even ? 1 : size); ++i) {
        if (block[i] != kUntouched) {
          found.bytes += is_even ? size : 1;
          found.ones += block[i] * (is_even ? size : 1);
        }
      }
    }
    return found;
  }

  // Makes the memory of the rank untouched that it may write to in a step.
  void clear(std::uint64_t step) {
    board_->line(step).small.fill(static_cast<std::byte>(kUntouched));
    std::memset(board_->slot(step), kUntouched, slot_bytes_);
    std::memset(board_->slot(step + 1), kUntouched, slot_bytes_);
  }

  // Returns the work, and how many ones were copied or reduced to destinations or slots.
  std::pair<Work, std::size_t> run(Kind kind, std::size_t root, const Sizes& gives, const Sizes& takes, std::uint8_t peers_give,
                                   std::uint8_t rank_gives) {
    std::vector<Bytes> sources = filled(gives, rank_gives);
    std::vector<Bytes> destinations = filled(takes, kUntouched);
    Movement movement;
    movement.kind = kind;
    movement.root = root;
    movement.sources =
        parts(sources, !gives.empty() && (kind == Kind::scatter || kind == Kind::all_to_all || kind == Kind::reduce_scatter));
    movement.destinations =
        parts(destinations, !takes.empty() && (kind == Kind::gather || kind == Kind::all_gather || kind == Kind::all_to_all));
    // A table of how many bytes each rank gets, in front of the shares
    const bool has_table = kind == Kind::scatter || kind == Kind::all_to_all;
    const std::size_t table = has_table ? (ranks_ * sizeof(std::uint64_t) + 63) / 64 * 64 : 0;
    for (std::size_t peer = 0; peer < ranks_; ++peer) {
      memory_of(peer).fill(peers_give);
    }
    for (std::size_t peer = 0; peer < ranks_ && has_table && !takes.empty(); ++peer) {
      const std::uint64_t bytes = kind == Kind::scatter ? takes.front() : takes.at(peer);
      for (std::uint64_t slot = 0; slot < kDepth; ++slot) {
        std::memcpy(memory_of(peer).slots.data() + slot * slot_bytes_ + rank_ * sizeof(bytes), &bytes, sizeof(bytes));
      }
    }

    Run run{movement, *board_, &Pattern::of(movement, *board_)};
    run.pattern->plan(run);
    Work work;
    work.steps = run.steps;
    std::size_t ones = 0;
    for (std::uint64_t step = 0; step < run.steps; ++step) {
      clear(step);
      run.pattern->write(run, step);
      work.copied += written(board_->slot(step) + table, slot_bytes_ - table).bytes;
      work.copied += written(board_->line(step).small.data(), Line::kSmall).bytes;
      for (std::size_t peer = 0; peer < ranks_; ++peer) {
        const bool waits = run.pattern->reads_from(run, peer, step) || (step == 0 && run.pattern->asks(run, peer));
        work.flags += peer != rank_ && waits ? 1 : 0;
      }
      clear(step);
      std::memset(board_->slot(step), 0, slot_bytes_);  // a result of its own, which may be read
      run.pattern->read(run, step);
      const Written reduced = written(board_->slot(step + 1), slot_bytes_);
      work.reduced += reduced.bytes;
      ones += reduced.ones;
    }
    for (const Bytes& bytes : destinations) {
      const Written stored = written(bytes.data(), bytes.size());
      work.stored += stored.bytes;
      ones += stored.ones;
    }
    EXPECT_FALSE(run.odd);
    return {work, ones};
  }

  const std::size_t ranks_;
  const std::size_t rank_;
  const std::size_t slot_bytes_;
  Memory own_;
  std::deque<Memory> peers_;
  std::unique_ptr<Board> board_;
};

// --- formulas

std::size_t down(std::size_t bytes) { return bytes / 64 * 64; }
std::size_t up(std::size_t bytes) { return down(bytes + 63); }
std::size_t steps_for(std::size_t bytes, std::size_t share) { return std::max<std::size_t>(1, (bytes + share - 1) / share); }

struct Group {
  std::size_t ranks;
  std::size_t peers = ranks - 1;
  std::size_t slot = Arena::slot_bytes(ranks);

  // A slot has one share for each peer. In front of those that are dealt, it has a table of 8 bytes
  // a rank.
  std::size_t scattered_share() const { return down(slot / peers); }
  std::size_t dealt_share() const { return down((slot - up(8 * ranks)) / peers); }
  // A slot has one share for each peer, and the result of one.
  std::size_t reduced_share() const { return down(slot / ranks); }

  bool reduces_at_once(std::size_t bytes) const {
    return bytes <= Line::kSmall || (bytes <= slot && ranks * bytes <= std::size_t{128} << 10U);
  }
  std::size_t chunks(std::size_t bytes) const { return steps_for(bytes, ranks * reduced_share()); }
  // The bytes that one rank reduces. Each chunk is cut into `ranks` equal shares of whole cache
  // lines; the last share that has data may be shorter, and the shares behind it are empty.
  std::size_t reduced_by(std::size_t rank, std::size_t bytes) const {
    std::size_t sum = 0;
    for (std::size_t left = bytes; left != 0;) {
      const std::size_t chunk = std::min(left, ranks * reduced_share());
      const std::size_t share = up((chunk + ranks - 1) / ranks);
      sum += std::min(share, chunk - std::min(chunk, rank * share));
      left -= chunk;
    }
    return sum;
  }
};

constexpr std::size_t kMost = std::size_t{4} << 20U;  // what a rank gives or takes in a test
const std::vector<std::size_t> kRanks{2, 3, 5, 8, 64, 256};
const std::vector<std::size_t> kSizes{0, 4, 96, 97, 5000, std::size_t{64} << 10U, std::size_t{1} << 20U};

// Calls `check(stage, group, rank, bytes)` for the first and the last rank, and among few ranks for
// one in the middle.
template <typename Check>
void for_all(const Check& check) {
  for (const std::size_t ranks : kRanks) {
    for (const std::size_t rank : std::set{std::size_t{0}, ranks <= 5 ? ranks / 2 : 0, ranks - 1}) {
      Stage stage(ranks, rank);
      for (const std::size_t bytes : kSizes) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, rank " << rank << ", " << bytes << " bytes");
        check(stage, Group{ranks}, rank, bytes);
      }
    }
  }
}

TEST(ShmPattern, BarrierReadsAFlagOfEachPeer) {
  for_all([](Stage& stage, const Group& group, std::size_t, std::size_t bytes) {
    if (bytes == 0) {
      EXPECT_EQ(stage.work(Kind::barrier, 0, {}, {}), (Work{.steps = 1, .flags = group.peers}));
    }
  });
}

TEST(ShmPattern, BroadcastCopiesAllToTheSlotsAndOutOfThem) {
  for_all([](Stage& stage, const Group& group, std::size_t rank, std::size_t bytes) {
    const std::size_t steps = steps_for(bytes, group.slot);
    EXPECT_EQ(stage.work(Kind::broadcast, rank, {bytes}, {}), (Work{.steps = steps, .copied = bytes}));
    const std::size_t other = (rank + 1) % group.ranks;
    EXPECT_EQ(stage.work(Kind::broadcast, other, {}, {bytes}),
              (Work{.steps = steps, .flags = steps, .read = bytes, .stored = bytes}));
  });
}

TEST(ShmPattern, AllGatherReadsEachPeerOnce) {
  for_all([](Stage& stage, const Group& group, std::size_t, std::size_t bytes) {
    if (group.ranks * bytes <= kMost) {
      const std::size_t steps = steps_for(bytes, group.slot);
      EXPECT_EQ(stage.work(Kind::all_gather, 0, {bytes}, Sizes(group.ranks, bytes)), (Work{.steps = steps,
                                                                                           .flags = group.peers * steps,
                                                                                           .copied = bytes,
                                                                                           .read = group.peers * bytes,
                                                                                           .own = bytes,
                                                                                           .stored = group.ranks * bytes}));
    }
  });
}

TEST(ShmPattern, GatherReadsOnlyAtTheRoot) {
  for_all([](Stage& stage, const Group& group, std::size_t rank, std::size_t bytes) {
    const std::size_t steps = steps_for(bytes, group.slot);
    if (group.ranks * bytes <= kMost) {
      const Work root = stage.work(Kind::gather, rank, {bytes}, Sizes(group.ranks, bytes));
      EXPECT_EQ(root, (Work{.steps = steps,
                            .flags = group.peers * steps,
                            .read = group.peers * bytes,
                            .own = bytes,
                            .stored = group.ranks * bytes}));
    }
    // The other ranks ask the root for the number of steps.
    const std::size_t other = (rank + 1) % group.ranks;
    EXPECT_EQ(stage.work(Kind::gather, other, {bytes}, {}), (Work{.steps = steps, .flags = 1, .copied = bytes}));
  });
}

TEST(ShmPattern, ScatterGivesEachRankOnlyItsOwn) {
  for_all([](Stage& stage, const Group& group, std::size_t rank, std::size_t bytes) {
    if (group.ranks * bytes > kMost) {
      return;
    }
    const std::size_t steps = steps_for(bytes, group.dealt_share());
    EXPECT_EQ(stage.work(Kind::scatter, rank, Sizes(group.ranks, bytes), {bytes}),
              (Work{.steps = steps, .copied = group.peers * bytes, .own = bytes, .stored = bytes}));
    const std::size_t other = (rank + 1) % group.ranks;
    EXPECT_EQ(stage.work(Kind::scatter, other, {}, {bytes}),
              (Work{.steps = steps, .flags = steps, .read = bytes, .stored = bytes}));
  });
}

TEST(ShmPattern, AllToAllReadsOfEachPeerOnlyItsOwn) {
  for_all([](Stage& stage, const Group& group, std::size_t, std::size_t bytes) {
    if (group.ranks * bytes <= kMost) {
      const std::size_t steps = steps_for(bytes, group.dealt_share());
      EXPECT_EQ(stage.work(Kind::all_to_all, 0, Sizes(group.ranks, bytes), Sizes(group.ranks, bytes)),
                (Work{.steps = steps,
                      .flags = group.peers * steps,
                      .copied = group.peers * bytes,
                      .read = group.peers * bytes,
                      .own = bytes,
                      .stored = group.ranks * bytes}));
    }
  });
}

// Little data: each rank reads all of it from all. Much data: each rank reads its share of it from
// all, and the results of the other shares, which is less than twice the data however many ranks
// there are.
TEST(ShmPattern, AllReduceOfMuchDataReadsLessThanTwiceTheData) {
  for_all([](Stage& stage, const Group& group, std::size_t rank, std::size_t bytes) {
    const Work work = stage.work(Kind::all_reduce, 0, {bytes}, {bytes});
    if (group.reduces_at_once(bytes)) {
      EXPECT_EQ(
          work,
          (Work{.steps = 1, .flags = group.peers, .copied = bytes, .read = group.peers * bytes, .own = bytes, .stored = bytes}));
      return;
    }
    const std::size_t share = group.reduced_by(rank, bytes);
    const std::size_t steps = group.chunks(bytes) + 1;
    EXPECT_EQ(work, (Work{.steps = steps,
                          .flags = group.peers * steps,
                          .copied = bytes - share,
                          .read = group.peers * share + bytes - share,
                          .own = share,
                          .reduced = share,
                          .stored = bytes}));
    EXPECT_LE(share, bytes / group.ranks + 64 * group.chunks(bytes));
    EXPECT_LE(work.read, 2 * bytes + 64 * group.ranks * group.chunks(bytes));
  });
}

TEST(ShmPattern, ReduceReadsResultsOnlyAtTheRoot) {
  for_all([](Stage& stage, const Group& group, std::size_t rank, std::size_t bytes) {
    Work root = stage.work(Kind::reduce, rank, {bytes}, {bytes});
    const Work other = stage.work(Kind::reduce, (rank + 1) % group.ranks, {bytes}, {});
    if (group.reduces_at_once(bytes)) {
      EXPECT_EQ(root, (Work{.steps = 1, .flags = group.peers, .read = group.peers * bytes, .own = bytes, .stored = bytes}));
      EXPECT_EQ(other, (Work{.steps = 1, .copied = bytes}));
      return;
    }
    const std::size_t share = group.reduced_by(rank, bytes);
    const std::size_t chunks = group.chunks(bytes);
    EXPECT_EQ(root, (Work{.steps = chunks + 1,
                          .flags = group.peers * (chunks + 1),
                          .copied = bytes - share,
                          .read = group.peers * share + bytes - share,
                          .own = share,
                          .reduced = share,
                          .stored = bytes}));
    EXPECT_EQ(other, (Work{.steps = chunks + 1,
                           .flags = group.peers * chunks,
                           .copied = bytes - share,
                           .read = group.peers * share,
                           .own = share,
                           .reduced = share}));
  });
}

TEST(ShmPattern, ReduceScatterReadsOfEachPeerOnlyItsOwn) {
  for_all([](Stage& stage, const Group& group, std::size_t, std::size_t bytes) {
    if (group.ranks * bytes <= kMost) {
      const std::size_t steps = steps_for(bytes, group.scattered_share());
      EXPECT_EQ(stage.work(Kind::reduce_scatter, 0, Sizes(group.ranks, bytes), {bytes}), (Work{.steps = steps,
                                                                                               .flags = group.peers * steps,
                                                                                               .copied = group.peers * bytes,
                                                                                               .read = group.peers * bytes,
                                                                                               .own = bytes,
                                                                                               .stored = bytes}));
    }
  });
}

TEST(ShmPattern, UnevenPartsTakeTheStepsOfTheLongest) {
  constexpr std::size_t kLong = 200000;
  const Group group{3};
  Stage stage(3, 1);
  const std::size_t gathering = steps_for(kLong, group.slot);
  EXPECT_EQ(stage.work(Kind::all_gather, 0, {5}, {kLong, 5, 0}),
            (Work{.steps = gathering, .flags = 2 * gathering, .copied = 5, .read = kLong, .own = 5, .stored = kLong + 5}));
  const std::size_t dealing = steps_for(kLong, group.dealt_share());
  EXPECT_EQ(stage.work(Kind::all_to_all, 0, {kLong, 7, 0}, {0, 7, 300}),
            (Work{.steps = dealing, .flags = 2 * dealing, .copied = kLong, .read = 300, .own = 7, .stored = 307}));
  EXPECT_EQ(stage.work(Kind::scatter, 1, {kLong, 0, 9}, {0}), (Work{.steps = dealing, .copied = kLong + 9}));
  const std::size_t scattering = steps_for(kLong, group.scattered_share());
  EXPECT_EQ(stage.work(Kind::reduce_scatter, 0, {kLong, 70, 0}, {70}),
            (Work{.steps = scattering, .flags = 2 * scattering, .copied = kLong, .read = 140, .own = 70, .stored = 70}));
}

// The table of a peer says that it gives another number of bytes than this rank expects.
TEST(ShmPattern, DealtSharesOfAnotherSizeAreNotStored) {
  constexpr std::size_t kSlot = 1024;
  std::vector<Face> faces(3);
  std::vector<Bytes> slots(3, Bytes(kDepth * kSlot, 1));
  std::vector<std::atomic<State>> states(3);
  std::vector<Board::Place> places;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    places.push_back({&faces[rank], reinterpret_cast<char*>(slots[rank].data()), &states[rank]});
    const std::uint64_t gives = rank == 0 ? 0 : 9 + rank;
    std::memcpy(slots[rank].data(), &gives, sizeof(gives));
  }
  Board board(places, 0, kSlot, {}, std::make_shared<FailureDomain>("group"));
  Bytes source(10, 2);
  std::vector<Bytes> destinations(3, Bytes(10, 3));
  Movement movement;
  movement.kind = Kind::all_to_all;
  movement.sources = Parts(std::vector<Part>(3, Part{source.data(), source.size()}));
  std::vector<Part> landings;
  for (Bytes& each : destinations) {
    landings.push_back({each.data(), each.size()});
  }
  movement.destinations = Parts(landings);
  shm::Run run{movement, board, &Pattern::of(movement, board)};
  run.pattern->plan(run);
  ASSERT_EQ(run.steps, 1U);
  run.pattern->read(run, 0);
  ASSERT_TRUE(run.odd);
  EXPECT_EQ(run.odd->peer, 2U);
  EXPECT_EQ(run.odd->bytes, 11U);
  EXPECT_EQ(destinations, (std::vector<Bytes>{Bytes(10, 2), Bytes(10, 1), Bytes(10, 3)}));
}

TEST(ShmPattern, SharesOfAnArenaHaveAtLeast2KB) {
  for (std::size_t ranks = 2; ranks <= 256; ++ranks) {
    Board board(std::vector<Board::Place>(ranks), 0, Arena::slot_bytes(ranks), {}, std::make_shared<FailureDomain>("group"));
    for (const Kind kind : {Kind::all_to_all, Kind::scatter, Kind::all_reduce, Kind::reduce, Kind::reduce_scatter}) {
      Movement movement;
      movement.kind = kind;
      const Part part{nullptr, std::size_t{1} << 20U};
      const bool lists = kind == Kind::all_to_all || kind == Kind::scatter || kind == Kind::reduce_scatter;
      movement.sources = lists ? Parts(std::vector<Part>(ranks, part)) : Parts(part);
      shm::Run run{movement, board, &Pattern::of(movement, board)};
      run.pattern->plan(run);
      EXPECT_GE(run.share, 2048U) << ranks << " ranks, kind " << static_cast<int>(kind);
      EXPECT_EQ(run.share % 64, 0U);
    }
  }
}

}  // namespace
}  // namespace torch_ucc::shm
