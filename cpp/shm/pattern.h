// How each kind of collective is cut into steps, and what a rank copies and reduces in each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "shm/board.h"
#include "shm/movement.h"

namespace torch_ucc::shm {

class Pattern;

// One collective under way on one rank.
struct Run {
  Movement& movement;
  Board& board;
  const Pattern* pattern = nullptr;
  std::uint64_t first_step = 0;  // its number on the board
  std::size_t share = 0;         // bytes of one rank in a step
  // In a gather and an all_to_all only known when the root, or all ranks, have entered the first
  // step
  std::uint64_t steps = 1;
  // Whether the caller's memory may be written. If not, the rank only serves its peers.
  bool stores = true;

  // The first peer that gives another number of bytes than this rank expects from it.
  struct Odd {
    std::size_t peer;
    std::uint64_t bytes;
    std::uint64_t expected;
  };
  std::optional<Odd> odd{};

  void note(Odd found) { odd = odd.value_or(found); }
  std::uint64_t at(std::uint64_t step) const { return first_step + step; }
  std::size_t rank() const { return board.rank(); }
  std::size_t size() const { return board.size(); }
  bool is_root() const { return board.rank() == movement.root; }
};

// Patterns have no state. In step 0..steps-1, each rank calls write(), enters the step, waits for
// the peers for which reads_from() is true, and calls read().
class Pattern {
 public:
  Pattern() = default;
  virtual ~Pattern() = default;
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  // Returns the pattern for a movement among the ranks of the board.
  static const Pattern& of(const Movement& movement, const Board& board);

  // Sets `share` and `steps`.
  virtual void plan(Run& run) const = 0;
  virtual void write(const Run& run, std::uint64_t step) const = 0;
  virtual bool reads_from(const Run& run, std::size_t peer, std::uint64_t step) const = 0;
  virtual void read(Run& run, std::uint64_t step) const = 0;

  // Whether the ranks can know different numbers of steps before they have met. Then this rank
  // looks at the line of `peer` in the first step: the most steps that a rank wants count.
  virtual bool asks(const Run& /*run*/, std::size_t /*peer*/) const { return false; }
  // The bytes that `peer` must give in the whole collective, if this rank knows; else kAny.
  static constexpr std::uint64_t kAny = ~std::uint64_t{0};
  virtual std::uint64_t expected_of(const Run& /*run*/, std::size_t /*peer*/) const { return kAny; }
};

}  // namespace torch_ucc::shm
