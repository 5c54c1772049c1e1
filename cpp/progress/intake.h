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

// A queue. Many threads add operations; the thread that holds the baton takes all of them. All
// members may be called from any thread.
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

  // Does not take the mutex. A thread that has added an operation gets false until a thread takes
  // it.
  bool empty() const { return size_.load(std::memory_order_seq_cst) == 0; }

 private:
  Mutex mutex_;
  std::vector<std::shared_ptr<Op>> waiting_ TUCC_GUARDED_BY(mutex_);
  std::atomic<std::size_t> size_{0};
};

}  // namespace torch_ucc
