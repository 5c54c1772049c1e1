// How a thread that waits for a long time notices that the user wants the program to end.
#pragma once

#include <atomic>
#include <exception>

#include "base/deadline.h"

namespace torch_ucc {

// Throws if the user wants the program to end. The Python module (bindings/) sets it when it is
// loaded; null until then.
using InterruptCheck = void (*)();
inline std::atomic<InterruptCheck> interrupt_check{nullptr};

// Whether `error`, thrown by code of the user such as a store in Python, means that the user wants
// the program to end. Set together with `interrupt_check`.
using IsInterrupt = bool (*)(const std::exception& error);
inline std::atomic<IsInterrupt> is_interrupt{nullptr};

// How often a wait that can be left at any time calls the check.
inline constexpr milliseconds kInterruptEvery{250};

inline void check_interrupt() {
  if (const InterruptCheck check = interrupt_check.load(std::memory_order_acquire)) {
    check();
  }
}

}  // namespace torch_ucc
