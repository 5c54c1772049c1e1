// Counts calls, bytes and waiting time of each operation of a group, separately for each route.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/deadline.h"
#include "trace/event.h"

namespace torch_ucc::trace {

// All members may be called from any thread. The three numbers are not read together: another
// thread may count between two reads.
class Counters {
 public:
  void called(std::int64_t bytes) {
    calls_.fetch_add(1, std::memory_order_relaxed);
    bytes_.fetch_add(static_cast<std::uint64_t>(bytes), std::memory_order_relaxed);
  }
  // Adds the time that a thread waited, asleep or driving the engine, until the operation ended.
  // Not called for an operation that had ended before.
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

// The counters of one operation, one for each route.
class CountersByRoute {
 public:
  Counters& operator[](Route route) { return counters_[static_cast<std::size_t>(route)]; }
  const Counters& operator[](Route route) const { return counters_[static_cast<std::size_t>(route)]; }

 private:
  std::array<Counters, kRoutes.size()> counters_{};
};

}  // namespace torch_ucc::trace
