// Time that the user grants to operations for a while: torch's ephemeral timeouts.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "base/thread_annotations.h"
#include "progress/op.h"

namespace torch_ucc {

// Each extension holds for all operations that begin after it was granted, until the first of these
// has ended. Operations that have begun keep what they were given. Any thread.
class TimeoutExtensions {
 public:
  using milliseconds = std::chrono::milliseconds;

  void grant(milliseconds more) {
    const MutexLock lock(mutex_);
    extensions_.push_back({more, std::make_shared<std::atomic<bool>>(false), false});
    any_.store(true, std::memory_order_release);
  }

  // What an operation that begins now gets above its timeout.
  milliseconds total() {
    milliseconds sum{0};
    if (!any_.load(std::memory_order_acquire)) {
      return sum;
    }
    const MutexLock lock(mutex_);
    std::erase_if(extensions_, [](const Extension& each) { return each.over->load(std::memory_order_acquire); });
    any_.store(!extensions_.empty(), std::memory_order_release);
    for (const Extension& each : extensions_) {
      sum += each.more;
    }
    return sum;
  }

  // To be called for each operation that begins; null: it has nothing to do, and has ended.
  void begin(Op* op) {
    if (!any_.load(std::memory_order_acquire)) {
      return;
    }
    const MutexLock lock(mutex_);
    for (Extension& each : extensions_) {
      if (each.has_first) {
        continue;
      }
      each.has_first = true;
      if (op == nullptr) {
        each.over->store(true, std::memory_order_release);
      } else {
        op->completion().on_done([over = each.over] { over->store(true, std::memory_order_release); });
      }
    }
  }

 private:
  struct Extension {
    milliseconds more;
    std::shared_ptr<std::atomic<bool>> over;  // whether the first operation has ended
    bool has_first;                           // whether that operation has begun
  };

  std::atomic<bool> any_{false};  // so that most operations need no lock
  Mutex mutex_;
  std::vector<Extension> extensions_ TUCC_GUARDED_BY(mutex_);
};

}  // namespace torch_ucc
