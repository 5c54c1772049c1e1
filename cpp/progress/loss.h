// A lost member of a group, and how long operations still wait for data from it.
#pragma once

#include <cstdint>
#include <limits>

#include "base/deadline.h"
#include "base/status.h"

namespace torch_ucc {

// A member that has ended or cannot be reached any more.
struct Loss {
  static constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

  int rank = 0;  // in the group
  // The error of operations that fail because of the loss; names the member
  Status reason;
  // The lower 32 bits of the sequence number of the last collective of the group that it called
  std::uint64_t last_called = kUnknown;

  // Whether it has certainly not called collective `seq`.
  bool has_not_called(std::uint64_t seq) const {
    return last_called != kUnknown && static_cast<std::int32_t>(static_cast<std::uint32_t>(last_called - seq)) < 0;
  }
};

struct LossPolicy {
  // How long a transport error, or a success in doubt, is held back until the end of a peer is
  // reported, which is then the reason of the failure. Zero: a transport error counts at once.
  milliseconds verdict{0};
  // How long nothing may arrive after a member was lost, before operations that may need data from
  // it fail.
  milliseconds quiet{500};
};

// Measures how long nothing has arrived, once a member is lost. It also counts how often the thread
// that drives has looked, so that a process that was stopped for a while looks again before it
// judges.
struct Quiet {
  std::uint32_t advances = 0;  // how often something has arrived
  std::uint32_t seen = 0;      // `advances` at the last look
  int looks = 0;               // how many looks saw nothing new
  Clock::time_point since{};   // when the first of these looks was
  Clock::time_point looked{};  // when the last look was

  // To be called at each look, at time `now`. Returns whether nothing has arrived for longer than
  // `duration` and for more than 50 looks.
  bool lasts(Clock::time_point now, Clock::duration duration) {
    constexpr int kLooks = 50;
    if (looks == 0 || advances != seen) {
      seen = advances;
      looks = 0;
      since = now;
    }
    if (now != looked) {
      looked = now;
      ++looks;
    }
    return looks > kLooks && now - since > duration;
  }
};

}  // namespace torch_ucc
