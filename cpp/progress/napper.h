// Decides what the background thread does next: drive, nap or sleep.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/deadline.h"

namespace torch_ucc {

// A state machine without side effects: it decides, and the thread acts.
//
// After a caller has left an operation, the thread waits for the grace, so that the caller can come
// back and wait for the operation itself; then the thread drives. After its last work it naps 20
// times for 100 us before it sleeps, so that a caller that posts and waits in turns need not wake
// it with a system call. While callers come back each time, the naps double up to 4 ms: on machines
// without a spare core each wake-up costs the rank 17 us.
class Napper {
 public:
  // What the thread sees. It must read the values in this order.
  struct Sight {
    std::uint64_t left = 0;  // how many operations callers have left so far
    bool wanted = false;     // a caller asked the thread to drive
    bool work = false;       // operations are outstanding, and no caller attends
    bool intake = false;     // operations wait in the intake
    bool held = true;        // the thread got the baton when it last drove
  };
  enum class Act : unsigned char { drive, nap, sleep };
  struct Step {
    Act act;
    Clock::duration duration{0};  // of a nap
    bool can_be_roused = false;   // whether WakeUp::rouse() ends the nap
  };

  static constexpr microseconds kGrace{50};
  static constexpr microseconds kNap{100};
  static constexpr microseconds kLongestNap{4000};
  // The longest nap while another thread has the baton: that thread may give it back and leave.
  static constexpr microseconds kLongestNapBesideWork{1000};
  static constexpr int kNapsBeforeSleep = 20;

  bool drives() const { return state_ == State::drives; }

  Step next(const Sight& sight) {
    switch (state_) {
      case State::sleeps:
        break;
      case State::drives:
        if (!sight.held) {  // mostly because the post of a caller takes long
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
  std::uint64_t ours_ = 0;  // callers did not come back in time for the operations up to this one
  std::uint64_t left_ = 0;  // Sight::left when the nap began
  microseconds length_ = kNap;
  int naps_ = kNapsBeforeSleep;  // how many naps since the last work
};

}  // namespace torch_ucc
