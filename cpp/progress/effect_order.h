// Has operations of a group that share memory take effect in the order in which they were called.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/overlap.h"
#include "base/thread_annotations.h"
#include "progress/op.h"

namespace torch_ucc {

// What an operation does with memory of its caller.
struct Effects {
  std::vector<Region> reads;
  std::vector<Region> writes;

  void add(const Effects& others);
};

// Whether a write of one meets a read or a write of the other.
bool conflict(const Effects& a, const Effects& b);

// The operations of a group that were posted and not waited for in the same call. Any thread.
class EffectOrder {
 public:
  using Earlier = std::vector<std::weak_ptr<const Op>>;

  // Those in flight that have to end before an operation with these effects begins. A message that
  // is only still to be sent from memory that the operation writes need not end: it is sent from a
  // copy.
  Earlier before(const Effects& effects);

  // All in flight that were added as collectives.
  Earlier collectives();

  void add(const std::shared_ptr<Op>& op, Effects effects, bool is_collective);

  // Whether nothing is in flight. A call of the same thread that was added before is seen.
  bool empty() const { return size_.load(std::memory_order_acquire) == 0; }

 private:
  struct Entry {
    std::weak_ptr<Op> op;  // the caller's memory must not live as long as the entry
    Effects effects;
    bool is_collective;
  };

  void forget_ended() TUCC_REQUIRES(mutex_);

  Mutex mutex_;  // threads may call at once
  std::vector<Entry> entries_ TUCC_GUARDED_BY(mutex_);
  std::atomic<std::size_t> size_{0};
};

}  // namespace torch_ucc
