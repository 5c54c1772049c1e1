// Pauses between two reads of the store.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "base/interrupt.h"

namespace torch_ucc {

// Called between two reads of the store. Throws StatusError if waiting is of no use any more, for
// example because a peer has ended. May be empty.
using GiveUp = std::function<void()>;

// The first pause is 0.2 ms, which is enough for peers that start together. Each pause is longer by
// half than the last, up to 50 ms. With more than 200 ranks the first pause is 1 us for each rank,
// and with more than 1000 ranks the longest is 50 us for each rank. So 10,000 ranks that wait for a
// late rank read the store 20,000 times a second; torch's store answers some 40,000 reads a second.
class Backoff {
 public:
  // `ranks`: how many ranks read the same store at the same time.
  explicit Backoff(int ranks = 1)
      : pause_(std::max(kShortest, ranks * std::chrono::microseconds(1))),
        longest_(std::max(kLong, ranks * std::chrono::microseconds(50))) {}

  // Calls `give_up`, then sleeps; after a pause of 50 ms or longer also calls check_interrupt().
  // Throws what these two throw.
  void sleep(const GiveUp& give_up = {}) {
    if (give_up) {
      give_up();
    }
    std::this_thread::sleep_for(pause_);
    if (pause_ >= kLong) {
      check_interrupt();
    }
    pause_ = std::min(pause_ + pause_ / 2, longest_);
  }

 private:
  static constexpr std::chrono::microseconds kShortest{200};
  static constexpr std::chrono::microseconds kLong{50000};

  std::chrono::microseconds pause_;
  std::chrono::microseconds longest_;
};

}  // namespace torch_ucc
