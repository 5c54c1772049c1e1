// Operations on their way to the holder of the baton.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "progress/op.h"

namespace torch_ucc {

// A message queue: many callers append, the holder of the baton takes all. Any thread.
class Intake {
 public:
  void add(std::shared_ptr<Op> op) {
    const MutexLock lock(mutex_);
    waiting_.push_back(std::move(op));
    size_.fetch_add(1, std::memory_order_seq_cst);
  }

  std::vector<std::shared_ptr<Op>> take_all() {
    std::vector<std::shared_ptr<Op>> taken;
    if (size_.load(std::memory_order_relaxed) != 0) {
      const MutexLock lock(mutex_);
      taken.swap(waiting_);
      size_.store(0, std::memory_order_seq_cst);
    }
    return taken;
  }

  // For a look without the baton: who appended before it sees at least its own.
  bool empty() const { return size_.load(std::memory_order_seq_cst) == 0; }

 private:
  Mutex mutex_;
  std::vector<std::shared_ptr<Op>> waiting_ TUCC_GUARDED_BY(mutex_);
  std::atomic<std::size_t> size_{0};
};

}  // namespace torch_ucc
