// What the background thread does next.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/deadline.h"

namespace torch_ucc {

// A pure state machine over what the thread sees: it never sleeps itself.
//
// A caller who leaves an operation gets a moment to come back and wait for it, the grace; then the
// thread drives. After its last work it stays half awake for 20 naps of 100 us, so that a caller
// who posts and waits by turns pays no system calls. While callers post and come back each time the
// naps double, so that none is longer than they have done so: on machines without a core to spare a
// rank pays for each wake-up, 17 us.
class Napper {
 public:
  // What the thread sees, read in this order.
  struct Sight {
    std::uint64_t left = 0;  // how many operations callers have left so far
    bool wanted = false;     // somebody asked it to drive
    bool work = false;       // something is under way, and no thread waits
    bool intake = false;     // something waits to be started
    bool held = true;        // it had the baton when it last drove
  };
  enum class Act : unsigned char { drive, nap, sleep };
  struct Step {
    Act act;
    Clock::duration duration{0};  // of a nap
    bool can_be_roused = false;   // from it
  };

  static constexpr microseconds kGrace{50};
  static constexpr microseconds kNap{100};
  static constexpr microseconds kLongestNap{4000};
  // Who has the baton may give it back and go on with something else.
  static constexpr microseconds kLongestNapBesideWork{1000};
  static constexpr int kNapsBeforeSleep = 20;

  bool drives() const { return state_ == State::drives; }

  Step next(const Sight& sight) {
    switch (state_) {
      case State::sleeps:
        break;
      case State::drives:
        if (!sight.held) {  // by a caller whose post takes long, mostly
          state_ = State::naps_beside_work;
          length_ = std::min(length_, kLongestNapBesideWork);
          return {Act::nap, length_, true};
        }
        length_ = kNap;
        break;
      case State::naps_beside_work:
        length_ *= 2;
        break;
      case State::gives_grace:
        if (sight.left == left_ || sight.intake) {
          ours_ = sight.left;
        } else {
          came_back();
        }
        break;
      case State::naps:
        if (sight.left != left_) {
          came_back();
        } else {
          length_ = kNap;
          ++naps_;
        }
        break;
    }
    if (sight.work && (sight.left == ours_ || sight.wanted || (drives() && sight.intake))) {
      state_ = State::drives;
      ours_ = sight.left;
      naps_ = 0;
      return {Act::drive};
    }
    left_ = sight.left;
    if (sight.work) {
      state_ = State::gives_grace;
      return {Act::nap, kGrace, false};
    }
    if (naps_ == kNapsBeforeSleep) {
      state_ = State::sleeps;
      naps_ = 0;
      return {Act::sleep};
    }
    state_ = State::naps;
    return {Act::nap, length_, true};
  }

 private:
  enum class State : unsigned char { sleeps, drives, naps_beside_work, gives_grace, naps };

  void came_back() {
    length_ = std::min(2 * length_, kLongestNap);
    naps_ = 0;
  }

  State state_ = State::sleeps;
  std::uint64_t ours_ = 0;  // up to this operation nobody came back in time
  std::uint64_t left_ = 0;  // when a nap began
  microseconds length_ = kNap;
  int naps_ = kNapsBeforeSleep;  // since the last work
};

}  // namespace torch_ucc
