// The end of one operation. Any number of threads may query it or leave callbacks.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "base/thread_annotations.h"

namespace torch_ucc {

// The first complete() sets the status; later ones have no effect. All members may be called from
// any thread.
class Completion {
 public:
  bool done() const { return (state_.load(std::memory_order_acquire) & kDone) != 0; }

  // Only valid once done().
  const Status& status() const { return status_; }

  // Ends the operation with `status`, and runs the callbacks of on_done() in this thread. Returns
  // false and does nothing if it was ended before.
  bool complete(Status status);

  // Runs `callback` once: now, in this thread, if the operation is done, otherwise later in the
  // thread that completes it. The callback must neither block nor throw, nor run code of the user.
  void on_done(std::function<void()> callback);

 private:
  static constexpr std::uint32_t kPending = 0;
  static constexpr std::uint32_t kClaimed = 1;  // a thread writes status_
  // There is a callback, so complete() takes the slow path
  static constexpr std::uint32_t kWatched = 2;
  static constexpr std::uint32_t kDone = 4;

  std::atomic<std::uint32_t> state_{kPending};
  Status status_;  // written once, between kClaimed and kDone

  Mutex mutex_;  // several threads may leave callbacks; only the slow path takes it
  std::vector<std::function<void()>> callbacks_ TUCC_GUARDED_BY(mutex_);
};

}  // namespace torch_ucc
