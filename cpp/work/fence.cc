#include "work/fence.h"

#include <algorithm>
#include <thread>

#include "base/interrupt.h"

namespace torch_ucc {

bool Fence::wait(Deadline deadline) const {
  constexpr microseconds kLongestPause{1000};
  microseconds pause{10};
  Deadline ask = Deadline::after(kInterruptEvery);
  while (!passed()) {
    const Clock::time_point now = Clock::now();
    if (deadline.passed(now)) {
      return false;
    }
    if (ask.passed(now)) {
      check_interrupt();
      ask = Deadline::after(kInterruptEvery, now);
    }
    std::this_thread::sleep_for(std::min<Clock::duration>(pause, deadline.left(now)));
    pause = std::min(pause * 2, kLongestPause);
  }
  return true;
}

}  // namespace torch_ucc
