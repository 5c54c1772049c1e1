// How often, how much, how long: counted for each operation of a group, and each way that it may
// go.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/deadline.h"
#include "trace/event.h"

namespace torch_ucc::trace {

// All members may be called from any thread. Numbers read while others count may be of different
// moments.
class Counters {
 public:
  void called(std::int64_t bytes) {
    calls_.fetch_add(1, std::memory_order_relaxed);
    bytes_.fetch_add(static_cast<std::uint64_t>(bytes), std::memory_order_relaxed);
  }
  // A thread slept or made progress for so long until the operation was done. What was done already
  // is not waited for.
  void waited(Clock::duration duration) {
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
    waited_ns_.fetch_add(static_cast<std::uint64_t>(ns), std::memory_order_relaxed);
  }

  std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  std::uint64_t waited_ns() const { return waited_ns_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> calls_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> waited_ns_{0};
};

// Those of one operation, by the way that it went.
class CountersByRoute {
 public:
  Counters& operator[](Route route) { return counters_[static_cast<std::size_t>(route)]; }
  const Counters& operator[](Route route) const { return counters_[static_cast<std::size_t>(route)]; }

 private:
  std::array<Counters, kRoutes.size()> counters_{};
};

}  // namespace torch_ucc::trace
