// Pauses between two looks at the store.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace torch_ucc {

// Starts at 0.2 ms, where peers that start together meet, and grows by half up to 50 ms: with 10,000 ranks waiting for a late
// one the store then sees 200,000 small requests a second, and each rank notices within 50 ms.
class Backoff {
 public:
  void sleep() {
    std::this_thread::sleep_for(pause_);
    pause_ = std::min<std::chrono::microseconds>(pause_ + pause_ / 2, std::chrono::milliseconds(50));
  }

 private:
  std::chrono::microseconds pause_{200};
};

}  // namespace torch_ucc
