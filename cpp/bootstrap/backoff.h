// Pauses between two looks at the store.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "base/interrupt.h"

namespace torch_ucc {

// Asked between two looks: throws StatusError once what is waited for cannot come any more. May be empty.
using GiveUp = std::function<void()>;

// Starts at 0.2 ms, where peers that start together meet, and grows by half up to 50 ms: with 10,000 ranks waiting for a late
// one the store then sees 200,000 small requests a second, and each rank notices within 50 ms.
class Backoff {
 public:
  // Throws what `give_up` throws and, once the pauses are long, what check_interrupt() throws.
  void sleep(const GiveUp& give_up = {}) {
    if (give_up) {
      give_up();
    }
    std::this_thread::sleep_for(pause_);
    if (pause_ == kLongest) {
      check_interrupt();
    }
    pause_ = std::min<std::chrono::microseconds>(pause_ + pause_ / 2, kLongest);
  }

 private:
  static constexpr std::chrono::microseconds kLongest{50000};

  std::chrono::microseconds pause_{200};
};

}  // namespace torch_ucc
