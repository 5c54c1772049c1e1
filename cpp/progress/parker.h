// Decides what a thread that waits does between polls: it spins for a short time, then yields, then
// sleeps with growing pauses.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/deadline.h"

namespace torch_ucc {

struct ParkPolicy {
  // How long to poll without a pause; zero when ranks outnumber their cores
  microseconds spin{200};
  microseconds yield{2000};  // how long to yield between polls after that
  microseconds pause_min{20};
  // Also the longest time in which the arrival of a peer is not noticed
  microseconds pause_max{1000};
  microseconds pause_max_rung{20000};  // used instead if every peer rings when it arrives
  // polls by a caller that waits: often enough for a small operation to end
  int polls_after_post = 16;
  int polls_per_yield = 8;   // polls between two yields
  int polls_per_round = 32;  // polls between two reads of the clock
  // If a yield takes longer, another thread computes on the core
  microseconds crowded_yield{1000};
  microseconds give_way{50000};  // how long a caller that waits then neither spins nor yields
  microseconds moving{5};        // a single poll that takes as long has moved data
  // The background thread starts an operation on the core of the caller that left it
  bool beside_caller = false;
};

// A state machine without side effects: it decides, and the thread sleeps.
class Parker {
 public:
  enum class Step : unsigned char { poll_again, yield, pause };

  Parker(const ParkPolicy& policy, Clock::time_point now) : policy_(policy), since_(now), pause_(policy.pause_min) {}

  // Returns what to do after a round of polls that ended at `now`.
  Step next(Clock::time_point now) {
    if (now < give_way_until_) {
      polls_ = 1;
      return Step::pause;
    }
    const auto waited = now - since_;
    if (waited < policy_.spin) {
      return Step::poll_again;
    }
    if (waited < policy_.spin + policy_.yield + patience_) {
      polls_ = policy_.polls_per_yield;
      return Step::yield;
    }
    polls_ = 1;
    return Step::pause;
  }

  // To be called when something has happened: the thread spins again.
  void restart(Clock::time_point now) {
    since_ = now;
    pause_ = policy_.pause_min;
    polls_ = 0;
  }

  // To be called after the single poll before a pause; `poll` is how long that poll took. Returns
  // true if the poll was so long that it may have moved data: then the thread should poll again
  // instead of the pause. After two such polls in a row the next pause is short. One alone may have
  // been slow only because the caches were cold after a long pause.
  bool moves(Clock::duration poll) {
    const bool again = std::exchange(moved_, poll >= policy_.moving);
    if (moved_ && again) {
      pause_ = policy_.pause_min;
    }
    return moved_;
  }

  // Adds `patience` to the time of yielding, for data whose transfer takes long even when all ranks
  // have arrived.
  void set_patience(microseconds patience) { patience_ = patience; }

  // Until `until` next() asks for pauses only. For a thread on whose core another thread computes:
  // the kernel lets a thread that spins or yields run again only after a time slice, while a thread
  // that sleeps runs as soon as it wakes.
  void give_way(Clock::time_point until) { give_way_until_ = until; }

  // Returns how many polls the next round has.
  int polls() const { return polls_ == 0 ? policy_.polls_per_round : polls_; }

  // Returns the length of the pause that next() asked for. Each pause is longer than the last, up
  // to pause_max, or pause_max_rung if `rung`: all peers that the thread waits for ring when they
  // arrive.
  microseconds take_pause(bool rung = false) {
    const microseconds pause = pause_;
    pause_ = std::min(rung ? policy_.pause_max_rung : policy_.pause_max, pause + pause / 4 + microseconds(1));
    return pause;
  }

 private:
  const ParkPolicy policy_;
  Clock::time_point since_;
  microseconds pause_;
  microseconds patience_{0};
  Clock::time_point give_way_until_{};
  int polls_ = 0;
  bool moved_ = false;
};

// Returns `policy`, adapted to `ranks` that share `cores`.
// - Without a spare core, each background thread begins on the core of its caller: otherwise the
//   kernel may wake two background threads on one core, and leave them there.
// - With more ranks than cores no thread spins, because the peer that it waits for may need this
//   core (4 ranks on 2 cores, 64 B: 6629 us with spinning, 11 us with yielding).
// - With more ranks than cores a thread polls little before it yields (all_reduce of 4 B: 18 us
//   with 16 polls after a post and 8 before a yield, 12.3 us with 2 and 2).
// - If many ranks share a core, a yield lasts until each of them has had its turn, which takes 100
//   us and more when caches are cold. So only a longer yield shows that another thread computes (16
//   ranks on 2 cores, 4 B: 1090 us with a limit of 1 ms, 840 us with 4 ms).
inline ParkPolicy fit_to_cores(ParkPolicy policy, int ranks, int cores) {
  policy.beside_caller = ranks >= cores;
  if (ranks > cores) {
    policy.spin = microseconds(0);
    policy.polls_after_post = 2;
    policy.polls_per_round = 2;
    policy.polls_per_yield = 2;
    policy.crowded_yield = std::max(policy.crowded_yield, policy.crowded_yield / 2 * (ranks / cores));
  }
  return policy;
}

}  // namespace torch_ucc
