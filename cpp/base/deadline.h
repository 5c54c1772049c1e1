// A point in time of the steady clock by which something must have ended.
#pragma once

#include <chrono>

namespace torch_ucc {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

class Deadline {
 public:
  // Never passes.
  Deadline() = default;
  explicit Deadline(Clock::time_point at) : at_(at) {}

  // Returns a deadline that never passes if `duration` is longer than 100 years.
  template <typename Rep, typename Period>
  static Deadline after(std::chrono::duration<Rep, Period> duration, Clock::time_point now = Clock::now()) {
    constexpr std::chrono::hours kForEver(24 * 365 * 100);
    return std::chrono::duration_cast<std::chrono::hours>(duration) > kForEver
               ? Deadline()
               : Deadline(now + std::chrono::duration_cast<Clock::duration>(duration));
  }

  bool passed(Clock::time_point now = Clock::now()) const { return now >= at_; }
  Clock::time_point at() const { return at_; }

  // Time left, never negative.
  Clock::duration left(Clock::time_point now = Clock::now()) const { return at_ <= now ? Clock::duration::zero() : at_ - now; }

  friend bool operator<(const Deadline& a, const Deadline& b) { return a.at_ < b.at_; }

 private:
  Clock::time_point at_ = Clock::time_point::max();
};

}  // namespace torch_ucc
