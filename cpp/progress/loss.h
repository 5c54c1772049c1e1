// A member of a group that has ended, and the question when those who still wait for it should give
// up.
#pragma once

#include <cstdint>
#include <limits>

#include "base/deadline.h"
#include "base/status.h"

namespace torch_ucc {

// A member that has ended or cannot be reached any more.
struct Loss {
  static constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

  int rank = 0;                          // in the group
  Status reason;                         // names it, for the error of operations that fail with it
  std::uint64_t last_called = kUnknown;  // the sequence number of the last collective of the group that it called
};

// How long operations wait for what may still decide how they end.
struct LossPolicy {
  // After an error of the transport: for the news that a peer has ended, which is then the reason
  // of the failure. With zero an error counts at once.
  milliseconds verdict{0};
  // After a member of the group was lost: for anything that still arrives.
  milliseconds quiet{500};
};

// How long nothing has arrived, once a member is lost. Counted in looks of the thread that drives
// as well, so that a process that did not run for a while looks before it judges.
struct Quiet {
  std::uint32_t advances = 0;  // what arrived
  std::uint32_t seen = 0;      // of these, at the last look
  int looks = 0;               // that saw nothing new
  Clock::time_point since{};   // the first of these
  Clock::time_point looked{};  // the last

  // Whether nothing has arrived for `duration`, after a look at `now`.
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
