#include "shm/pattern.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

namespace torch_ucc::shm {
namespace {

using Kind = Movement::Kind;

constexpr std::size_t kAligned = 64;  // shares of a slot begin at a cache line, and hold whole elements

std::size_t align_down(std::size_t bytes) { return bytes / kAligned * kAligned; }
std::size_t align_up(std::size_t bytes) { return align_down(bytes + kAligned - 1); }

// Share number `step` of a part that is cut into shares of `share` bytes; empty behind its end.
Part cut(const Part& part, std::size_t share, std::uint64_t step) {
  const std::size_t begin = std::min(part.bytes, static_cast<std::size_t>(step) * share);
  return {static_cast<char*>(part.data) + begin, std::min(share, part.bytes - begin)};
}

void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0 && to != from) {
    std::memcpy(to, from, bytes);
  }
}

std::size_t longest(std::span<const Part> parts) {
  std::size_t most = 0;
  for (const Part& part : parts) {
    most = std::max(most, part.bytes);
  }
  return most;
}

std::uint64_t steps_for(std::size_t bytes, std::size_t share) {
  return std::max<std::size_t>(1, bytes / share + (bytes % share == 0 ? 0 : 1));
}

// The place that a rank has among all ranks but `owner`.
std::size_t place_without(std::size_t owner, std::size_t rank) { return rank < owner ? rank : rank - 1; }

// Reduces `bytes` bytes of all ranks, in the order of the ranks, to `to`. `of(rank)` is where those
// of a rank lie.
template <typename Of>
void reduce(const Run& run, void* to, std::size_t bytes, const Of& of) {
  if (bytes == 0) {
    return;
  }
  constexpr std::size_t kFew = 64;
  std::array<const void*, kFew> few{};
  std::vector<const void*> many;
  std::span<const void*> sources(few);
  if (run.size() > kFew) {
    many.resize(run.size());
    sources = many;
  }
  for (std::size_t rank = 0; rank < run.size(); ++rank) {
    sources[rank] = of(rank);
  }
  const Reduce kernel = reduce_kernel(run.movement.type, run.movement.op);
  kernel(to, sources.data(), run.size(), bytes / size_of(run.movement.type));
}

// Barrier, broadcast, all_gather, gather: each rank that has data gives all of it to every rank
// that reads. A share is as long as a slot.
class Spread final : public Pattern {
 public:
  void plan(Run& run) const override {
    run.share = run.board.slot_bytes();
    run.steps = steps_for(std::max(longest(run.movement.sources.all()), longest(run.movement.destinations.all())), run.share);
  }

  void write(const Run& run, std::uint64_t step) const override {
    if (gives(run, run.rank()) && !reads_alone(run)) {
      const Part& source = run.movement.sources.only();
      const Part share = cut(source, run.share, step);
      copy(run.board.given(run.at(step), source.bytes), share.data, share.bytes);
    }
  }

  bool reads_from(const Run& run, std::size_t peer, std::uint64_t /*step*/) const override {
    return run.movement.kind == Kind::barrier || (gives(run, peer) && takes(run));
  }

  void read(Run& run, std::uint64_t step) const override {
    if (!run.stores || !takes(run) || run.odd) {
      return;
    }
    for (std::size_t peer = 0; peer < run.size(); ++peer) {
      if (!gives(run, peer)) {
        continue;
      }
      const Part& destination = landing_of(run, peer);
      const Part share = cut(destination, run.share, step);
      const void* const from = peer == run.rank() ? cut(run.movement.sources.only(), run.share, step).data
                                                  : run.board.given_by(peer, run.at(step), destination.bytes);
      copy(share.data, from, share.bytes);
    }
  }

  bool asks(const Run& run, std::size_t peer) const override {
    return run.movement.kind == Kind::gather && peer == run.movement.root;
  }

  std::uint64_t expected_of(const Run& run, std::size_t peer) const override {
    return gives(run, peer) && takes(run) ? landing_of(run, peer).bytes : kAny;
  }

 private:
  static bool gives(const Run& run, std::size_t rank) {
    switch (run.movement.kind) {
      case Kind::broadcast:
        return rank == run.movement.root;
      case Kind::barrier:
        return false;
      default:
        return true;
    }
  }
  // Nobody else reads what the root of a gather gives.
  static bool reads_alone(const Run& run) { return run.movement.kind == Kind::gather && run.is_root(); }
  static bool takes(const Run& run) { return !run.movement.destinations.empty(); }
  static const Part& landing_of(const Run& run, std::size_t peer) {
    return run.movement.kind == Kind::broadcast ? run.movement.destinations.only() : run.movement.destinations.of(peer);
  }
};

// all_to_all and scatter: a rank gives each peer data of its own. In front of the shares, a slot
// has a table of how many bytes each peer gets in all.
class Deal final : public Pattern {
 public:
  void plan(Run& run) const override {
    const std::size_t peers = std::max<std::size_t>(1, run.size() - 1);
    run.share = align_down((run.board.slot_bytes() - table_bytes(run)) / peers);
    run.steps = steps_for(std::max(longest(run.movement.sources.all()), longest(run.movement.destinations.all())), run.share);
  }

  void write(const Run& run, std::uint64_t step) const override {
    if (!gives(run, run.rank())) {
      return;
    }
    char* const slot = run.board.slot(run.at(step));
    for (std::size_t peer = 0; peer < run.size(); ++peer) {
      if (peer != run.rank()) {
        const Part& source = run.movement.sources.of(peer);
        const std::uint64_t bytes = source.bytes;
        std::memcpy(slot + peer * sizeof(bytes), &bytes, sizeof(bytes));
        const Part share = cut(source, run.share, step);
        copy(slot + offset(run, run.rank(), peer), share.data, share.bytes);
      }
    }
  }

  bool reads_from(const Run& run, std::size_t peer, std::uint64_t /*step*/) const override {
    return gives(run, peer) && !run.movement.destinations.empty();
  }

  void read(Run& run, std::uint64_t step) const override {
    for (std::size_t peer = 0; peer < run.size(); ++peer) {
      if (!gives(run, peer) || run.movement.destinations.empty()) {
        continue;
      }
      const Part& destination =
          run.movement.kind == Kind::scatter ? run.movement.destinations.only() : run.movement.destinations.of(peer);
      const Part share = cut(destination, run.share, step);
      if (peer == run.rank()) {
        if (run.stores) {
          copy(share.data, cut(run.movement.sources.of(peer), run.share, step).data, share.bytes);
        }
        continue;
      }
      const char* const slot = run.board.slot_of(peer, run.at(step));
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, slot + run.rank() * sizeof(bytes), sizeof(bytes));
      if (bytes != destination.bytes) {
        run.note({peer, bytes, destination.bytes});
      } else if (run.stores) {
        copy(share.data, slot + offset(run, peer, run.rank()), share.bytes);
      }
    }
  }

  bool asks(const Run& run, std::size_t peer) const override {
    return run.movement.kind == Kind::all_to_all || peer == run.movement.root;
  }

 private:
  static bool gives(const Run& run, std::size_t rank) {
    return run.movement.kind == Kind::all_to_all || rank == run.movement.root;
  }
  static std::size_t table_bytes(const Run& run) { return align_up(run.size() * sizeof(std::uint64_t)); }
  static std::size_t offset(const Run& run, std::size_t giver, std::size_t taker) {
    return table_bytes(run) + place_without(giver, taker) * run.share;
  }
};

// all_reduce and reduce of little data, in one step: each rank gives all of its data, and each rank
// that gets the result reduces all of it.
class ReduceAtOnce final : public Pattern {
 public:
  // Up to how many bytes this takes less time than ReduceInShares, which reads less but waits once
  // more. With 8 ranks on 2 cores a wait is a switch between processes, and 16 KB take 43 us instead
  // of 60; with a core for each of 2 ranks, 64 KB take as long either way.
  static bool suits(std::size_t bytes, std::size_t ranks, std::size_t slot_bytes) {
    constexpr std::size_t kRead = std::size_t{128} << 10U;
    return ranks == 1 || bytes <= Line::kSmall || (bytes <= slot_bytes && bytes * ranks <= kRead);
  }

  void plan(Run& run) const override {
    run.share = run.movement.sources.only().bytes;
    run.steps = 1;
  }

  void write(const Run& run, std::uint64_t step) const override {
    const bool reads_alone = run.size() == 1 || (run.movement.kind == Kind::reduce && run.is_root());
    if (!reads_alone) {
      const Part& source = run.movement.sources.only();
      copy(run.board.given(run.at(step), source.bytes), source.data, source.bytes);
    }
  }

  bool reads_from(const Run& run, std::size_t /*peer*/, std::uint64_t /*step*/) const override {
    return !run.movement.destinations.empty();
  }

  void read(Run& run, std::uint64_t step) const override {
    if (!run.stores || run.movement.destinations.empty()) {
      return;
    }
    const std::size_t bytes = run.share;
    reduce(run, run.movement.destinations.only().data, bytes, [&](std::size_t rank) -> const void* {
      return rank == run.rank() ? run.movement.sources.only().data : run.board.given_by(rank, run.at(step), bytes);
    });
  }

  std::uint64_t expected_of(const Run& run, std::size_t /*peer*/) const override { return run.movement.sources.only().bytes; }
};

// reduce_scatter: a rank gives each peer its share of the data, and reduces its own.
class ReduceScatter final : public Pattern {
 public:
  void plan(Run& run) const override {
    run.share = align_down(run.board.slot_bytes() / std::max<std::size_t>(1, run.size() - 1));
    run.steps = steps_for(longest(run.movement.sources.all()), run.share);
  }

  void write(const Run& run, std::uint64_t step) const override {
    for (std::size_t peer = 0; peer < run.size(); ++peer) {
      if (peer != run.rank()) {
        const Part share = cut(run.movement.sources.of(peer), run.share, step);
        copy(run.board.slot(run.at(step)) + place_without(run.rank(), peer) * run.share, share.data, share.bytes);
      }
    }
  }

  bool reads_from(const Run& /*run*/, std::size_t /*peer*/, std::uint64_t /*step*/) const override { return true; }

  void read(Run& run, std::uint64_t step) const override {
    if (!run.stores) {
      return;
    }
    const Part share = cut(run.movement.destinations.only(), run.share, step);
    reduce(run, share.data, share.bytes, [&](std::size_t rank) -> const void* {
      return rank == run.rank() ? cut(run.movement.sources.of(rank), run.share, step).data
                                : run.board.slot_of(rank, run.at(step)) + place_without(rank, run.rank()) * run.share;
    });
  }

  std::uint64_t expected_of(const Run& run, std::size_t /*peer*/) const override { return run.movement.bytes_given(); }
};

// all_reduce and reduce of much data. In step i, the ranks reduce chunk i, each its own share of
// it, and spread the result of chunk i - 1. So they wait for each other once for each chunk. A slot
// has the shares for the peers, and then the rank's result of the chunk before.
class ReduceInShares final : public Pattern {
 public:
  void plan(Run& run) const override {
    run.share = align_down(run.board.slot_bytes() / run.size());
    run.steps = steps_for(run.movement.sources.only().bytes, run.share * run.size()) + 1;
  }

  void write(const Run& run, std::uint64_t step) const override {
    if (step + 1 == run.steps) {
      return;
    }
    char* const slot = run.board.slot(run.at(step));
    for (std::size_t peer = 0; peer < run.size(); ++peer) {
      if (peer != run.rank()) {
        const Part share = share_of(run, run.movement.sources.only(), step, peer);
        copy(slot + place_without(run.rank(), peer) * run.share, share.data, share.bytes);
      }
    }
  }

  bool reads_from(const Run& run, std::size_t /*peer*/, std::uint64_t step) const override {
    return step + 1 != run.steps || !run.movement.destinations.empty();
  }

  void read(Run& run, std::uint64_t step) const override {
    if (step + 1 != run.steps) {
      const Part mine = share_of(run, run.movement.sources.only(), step, run.rank());
      // All peers have entered this step, so they read nothing more from the slot for the next one.
      reduce(run, run.board.slot(run.at(step + 1)) + result_offset(run), mine.bytes, [&](std::size_t rank) -> const void* {
        return rank == run.rank() ? mine.data
                                  : run.board.slot_of(rank, run.at(step)) + place_without(rank, run.rank()) * run.share;
      });
    }
    if (step == 0 || !run.stores || run.movement.destinations.empty()) {
      return;
    }
    for (std::size_t rank = 0; rank < run.size(); ++rank) {
      const Part share = share_of(run, run.movement.destinations.only(), step - 1, rank);
      const char* const slot = rank == run.rank() ? run.board.slot(run.at(step)) : run.board.slot_of(rank, run.at(step));
      copy(share.data, slot + result_offset(run), share.bytes);
    }
  }

  std::uint64_t expected_of(const Run& run, std::size_t /*peer*/) const override { return run.movement.sources.only().bytes; }

 private:
  static std::size_t result_offset(const Run& run) { return (run.size() - 1) * run.share; }

  // The share of a rank in a chunk. The last chunk is cut evenly, too.
  static Part share_of(const Run& run, const Part& all, std::uint64_t chunk, std::size_t rank) {
    const Part whole = cut(all, run.share * run.size(), chunk);
    return cut(whole, align_up((whole.bytes + run.size() - 1) / run.size()), rank);
  }
};

}  // namespace

const Pattern& Pattern::of(const Movement& movement, const Board& board) {
  static const Spread spread;
  static const Deal deal;
  static const ReduceAtOnce at_once;
  static const ReduceScatter scatter;
  static const ReduceInShares in_shares;
  switch (movement.kind) {
    case Kind::barrier:
    case Kind::broadcast:
    case Kind::all_gather:
    case Kind::gather:
      return spread;
    case Kind::scatter:
    case Kind::all_to_all:
      return deal;
    case Kind::reduce_scatter:
      return scatter;
    case Kind::all_reduce:
    case Kind::reduce:
      break;
  }
  if (ReduceAtOnce::suits(movement.sources.only().bytes, board.size(), board.slot_bytes())) {
    return at_once;
  }
  return in_shares;
}

}  // namespace torch_ucc::shm
