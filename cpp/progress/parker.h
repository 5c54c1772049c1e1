// How a thread that waits spends its time: spins briefly, then yields, then sleeps with growing
// pauses.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/deadline.h"

namespace torch_ucc {

struct ParkPolicy {
  microseconds spin{200};    // polls without pause; zero when ranks outnumber their cores
  microseconds yield{2000};  // then gives the core away between polls
  microseconds pause_min{20};
  microseconds pause_max{1000};        // also the longest time a peer's arrival goes unnoticed
  microseconds pause_max_rung{20000};  // where every peer rings when it arrives
  int polls_after_post = 16;           // by who stays: an operation of ranks that all arrived ends right there
  int polls_per_yield = 8;             // between two yields
  int polls_per_round = 32;            // between two looks at the clock
  microseconds crowded_yield{1000};    // a yield that took so long gave the core to somebody who computes
  microseconds give_way{50000};        // then who waits neither spins nor yields for so long
  microseconds moving{5};              // a single poll that took so long moved data
  bool beside_caller = false;          // the background thread starts what its caller left on the core of that one
};

// A pure state machine over the time given to it: it never sleeps itself.
class Parker {
 public:
  enum class Step : unsigned char { poll_again, yield, pause };

  Parker(const ParkPolicy& policy, Clock::time_point now) : policy_(policy), since_(now), pause_(policy.pause_min) {}

  // What to do after a round of polling that ended at `now`.
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

  // Something happened: from the start again.
  void restart(Clock::time_point now) {
    since_ = now;
    pause_ = policy_.pause_min;
    polls_ = 0;
  }

  // Whether to poll once more instead of the pause that next() asked for, as the one poll before it
  // took so long and may have moved data. After a second such poll in a row the next pause is a
  // short one: a single one may have been slow only because the caches were cold after a long
  // pause.
  bool moves(Clock::duration poll) {
    const bool again = std::exchange(moved_, poll >= policy_.moving);
    if (moved_ && again) {
      pause_ = policy_.pause_min;
    }
    return moved_;
  }

  // Time to add to the yielding, for data that takes a while even when everybody is there.
  void set_patience(microseconds patience) { patience_ = patience; }

  // Somebody else computes on our core: who spins or yields there is not let back for a time slice,
  // who sleeps is when he wakes.
  void give_way(Clock::time_point until) { give_way_until_ = until; }

  // Polls in the coming round.
  int polls() const { return polls_ == 0 ? policy_.polls_per_round : polls_; }

  // The length of the pause that next() asked for; each is longer than the last, up to pause_max.
  // `rung`: who is waited for will ring.
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

// The policy for `ranks` that share `cores`: with more ranks than cores nobody spins, since the
// peer that would be waited for may need this very core (4 ranks on 2 cores, 64 B: 6629 us
// spinning, 11 us yielding), and nobody polls much before it yields (all_reduce of 4 B: 18 us with
// 16 polls after a post and 8 a yield, 12.3 us with 2 and 2). Without a core to spare each
// background thread begins on its own rank's: the kernel may wake two background threads on one
// core, and leave them there. Where many share a core, a yield lasts until each of the others had
// its turn, of 100 us and more where caches are cold: only a longer one was to somebody who
// computes (16 ranks on 2 cores, 4 B: 1090 us when 1 ms was, 840 us with 4 ms).
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
