// What the ranks of one group show each other in shared memory, and the protocol by which they read
// it.
//
// Each rank has a Face: memory that only this rank writes, and that the other ranks map read-only.
// The collectives of a group are cut into steps, which are numbered through the life of the group;
// all ranks agree on the numbers. To enter step s, a rank writes what it gives in this step to slot
// s % kDepth and to the line of the slot, and then stores s + 1 in Line::entered (release). A rank
// that reads a peer's slot first sees this number (acquire). There is no other synchronisation: a
// rank that has entered step s has finished to read what it needed of all steps before s. So slot
// s % kDepth may be written again, for step s, when all peers have entered step s - kDepth + 1.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "progress/bell.h"
#include "progress/failure_domain.h"
#include "progress/loop_token.h"
#include "progress/ticket_queue.h"

namespace torch_ucc::shm {

// The line of a slot, which takes two cache lines, because processors fetch them in pairs. A peer's
// line may hold anything: what it says is compared, and never used as an address or a length.
struct alignas(128) Line {
  static constexpr std::size_t kSmall = 88;

  std::atomic<std::uint64_t> entered{0};  // the number of the step, plus one
  // Of the collective that the step belongs to:
  std::uint64_t call = 0;                 // what it is: see Movement::call()
  std::uint64_t before = 0;               // a digest of all collectives before it: see Board::history()
  std::uint64_t bytes = 0;                // what the rank gives in it
  std::uint64_t steps = 0;                // how many steps the rank wants it to have
  std::array<std::byte, kSmall> small{};  // what it gives, if that is so little
};
static_assert(sizeof(Line) == 128 && std::atomic<std::uint64_t>::is_always_lock_free);

// How many slots a face has, which limits how many steps a rank can be ahead of one that reads from
// it. Collectives in which all ranks wait for each other need three.
inline constexpr std::uint64_t kDepth = 4;

// The first part of a face; the slots follow in pages of their own. Zeroed memory is a face that
// has entered no step.
struct Face {
  std::array<Line, kDepth> lines{};
};

// Why a rank enters no step of its group any more.
enum class State : std::uint8_t {
  open,
  left,    // the rank has closed the group, and reads nothing more
  failed,  // the group has failed for this rank
};

// The board of one group, as one rank sees it. Used with the baton, except where noted.
class Board {
 public:
  // The face of one rank.
  struct Place {
    // Written only by the rank that the place belongs to
    Face* face = nullptr;
    char* slots = nullptr;
    std::atomic<State>* state = nullptr;
  };

  // `places` are by rank of the group, and their memory must outlive the board. `slot_bytes`, the
  // size of a slot, is a multiple of 64. The operations of the board fail together with `domain`.
  Board(std::vector<Place> places, int rank, std::size_t slot_bytes, Bells bells, std::shared_ptr<FailureDomain> domain)
      : places_(std::move(places)),
        rank_(static_cast<std::size_t>(rank)),
        slot_bytes_(slot_bytes),
        bells_(std::move(bells)),
        domain_(std::move(domain)),
        seen_(places_.size()) {}

  std::size_t rank() const { return rank_; }
  std::size_t size() const { return places_.size(); }
  std::size_t slot_bytes() const { return slot_bytes_; }
  FailureDomain& domain() const { return *domain_; }
  // The ranks in the group, for errors, if only some of its ranks are on the board.
  void set_group_ranks(std::vector<std::size_t> ranks) { group_ranks_ = std::move(ranks); }
  std::size_t group_rank_of(std::size_t rank) const { return group_ranks_.empty() ? rank : group_ranks_[rank]; }
  bool all_members_ring() const { return bells_.complete; }
  void ring_members() const { Bell::ring(bells_.on_host); }

  // The collectives of the group run one after the other, in the order of their calls.
  TicketQueue& tickets() { return tickets_; }
  // The number of the first step of the next collective.
  std::uint64_t next_step() const { return next_step_; }
  // A digest of the ended collectives. Ranks that made the same calls have the same digest.
  std::uint64_t history() const { return history_; }
  // A collective that ends adds itself: see Movement::call().
  void add(std::uint64_t call, std::uint64_t steps) {
    next_step_ += steps;
    for (const std::uint64_t value : {call, steps}) {
      history_ = (history_ ^ value) * 0x9e3779b97f4a7c15;
      history_ ^= history_ >> 32U;
    }
  }

  // Whether `peer` has entered `step`, so that what it gives in this step can be read.
  bool has_entered(std::size_t peer, std::uint64_t step) {
    if (seen_[peer] <= step) {
      seen_[peer] = std::max(seen_[peer], line_of(peer, step).entered.load(std::memory_order_acquire));
    }
    return seen_[peer] > step;
  }
  // Returns the first peer that may still read from the slot for `step`; size() if there is none,
  // so that the slot may be written.
  std::size_t reader_of_slot(std::uint64_t step) {
    if (step >= kDepth && cleared_ <= step) {
      for (std::size_t peer = 0; peer < size(); ++peer) {
        if (peer != rank_ && !has_entered(peer, step - kDepth + 1)) {
          return peer;
        }
      }
      cleared_ = step + 1;
    }
    return size();
  }

  // The memory for what this rank gives in `step`.
  Line& line(std::uint64_t step) { return places_[rank_].face->lines[step % kDepth]; }
  char* slot(std::uint64_t step) { return places_[rank_].slots + (step % kDepth) * slot_bytes_; }
  // Enters `step`: what this rank has written becomes visible to the peers.
  void enter(std::uint64_t step) { line(step).entered.store(step + 1, std::memory_order_release); }

  // What a peer has given in `step`, which it must have entered.
  const Line& line_of(std::size_t peer, std::uint64_t step) const { return places_[peer].face->lines[step % kDepth]; }
  const char* slot_of(std::size_t peer, std::uint64_t step) const { return places_[peer].slots + (step % kDepth) * slot_bytes_; }
  // The first `bytes` bytes that a rank gives in `step`: in its line if they fit, else in its slot.
  char* given(std::uint64_t step, std::size_t bytes) {
    return bytes <= Line::kSmall ? reinterpret_cast<char*>(line(step).small.data()) : slot(step);
  }
  const char* given_by(std::size_t peer, std::uint64_t step, std::size_t bytes) const {
    return bytes <= Line::kSmall ? reinterpret_cast<const char*>(line_of(peer, step).small.data()) : slot_of(peer, step);
  }

  // The first state but `open` stays. Any thread.
  void set_state(State state) {
    State open = State::open;
    places_[rank_].state->compare_exchange_strong(open, state, std::memory_order_release);
  }
  State state_of(std::size_t peer) const { return places_[peer].state->load(std::memory_order_acquire); }
  // Whether no rank of the group reads from the board any more. Any thread.
  bool is_over() const {
    return std::all_of(places_.begin(), places_.end(),
                       [](const Place& place) { return place.state->load(std::memory_order_acquire) != State::open; });
  }

 private:
  const std::vector<Place> places_;
  const std::size_t rank_;
  const std::size_t slot_bytes_;
  const Bells bells_;
  const std::shared_ptr<FailureDomain> domain_;
  TicketQueue tickets_;
  std::uint64_t next_step_ = 0;
  std::uint64_t history_ = 1;  // differs from zeroed memory, which no rank has written
  std::uint64_t cleared_ = 0;  // the slots for the steps before this one may be written
  std::vector<std::size_t> group_ranks_;
  std::vector<std::uint64_t> seen_;  // by rank: the latest number seen in its lines
};

}  // namespace torch_ucc::shm
