// How a long wait learns that the user wants the program to end.
#pragma once

#include <atomic>
#include <exception>

#include "base/deadline.h"

namespace torch_ucc {

// Throws if so. Set once, by whoever knows how signals arrive: see bindings/.
using InterruptCheck = void (*)();
inline std::atomic<InterruptCheck> interrupt_check{nullptr};

// Whether an exception of the user's own code, such as a store in Python, means the same. Set with
// the check.
using IsInterrupt = bool (*)(const std::exception& error);
inline std::atomic<IsInterrupt> is_interrupt{nullptr};

// How often a wait asks, where it can be left at any time.
inline constexpr milliseconds kInterruptEvery{250};

inline void check_interrupt() {
  if (const InterruptCheck check = interrupt_check.load(std::memory_order_acquire)) {
    check();
  }
}

}  // namespace torch_ucc
