// Pauses between two looks at the store.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "base/interrupt.h"

namespace torch_ucc {

// Asked between two looks: throws StatusError once what is waited for cannot come any more. May be
// empty.
using GiveUp = std::function<void()>;

// Starts at 0.2 ms, where peers that start together meet, and grows by half up to 50 ms. With many
// ranks that look each is longer: torch's store answers some 40,000 looks a second, and is asked by
// 10,000 ranks which wait for a late one 20,000 times, who notice within half a second.
class Backoff {
 public:
  // `ranks` look at the same store meanwhile.
  explicit Backoff(int ranks = 1)
      : pause_(std::max(kShortest, ranks * std::chrono::microseconds(1))),
        longest_(std::max(kLong, ranks * std::chrono::microseconds(50))) {}

  // Throws what `give_up` throws and, once the pauses are long, what check_interrupt() throws.
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
