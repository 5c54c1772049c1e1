// The end of one operation, seen by any number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "base/thread_annotations.h"

namespace torch_ucc {

// Ends once, with the first status given; later ones are ignored. All members may be called from
// any thread.
class Completion {
 public:
  bool done() const { return (state_.load(std::memory_order_acquire) & kDone) != 0; }

  // Only valid once done().
  const Status& status() const { return status_; }

  // True if this call ended it. Runs what on_done() left, in this thread.
  bool complete(Status status);

  // Runs `callback` once, when done: at once in this thread if it is already. The callback must
  // neither block nor throw, nor run code of the user.
  void on_done(std::function<void()> callback);

 private:
  static constexpr std::uint32_t kPending = 0;
  static constexpr std::uint32_t kClaimed = 1;  // somebody writes status_
  static constexpr std::uint32_t kWatched = 2;  // a callback needs the slow path
  static constexpr std::uint32_t kDone = 4;

  std::atomic<std::uint32_t> state_{kPending};
  Status status_;  // written once, between kClaimed and kDone

  Mutex mutex_;  // several threads may leave callbacks; only the slow path takes it
  std::vector<std::function<void()>> callbacks_ TUCC_GUARDED_BY(mutex_);
};

}  // namespace torch_ucc
