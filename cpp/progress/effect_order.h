// Has operations of a group that share memory take effect in the order in which they were called.
#pragma once

#include <atomic>
#include <functional>
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
  // What an operation comes after.
  struct Before {
    std::weak_ptr<const Op> op;
    bool until_detached = false;  // it only has to have its inputs elsewhere, and need not end

    bool over() const;
  };
  using Earlier = std::vector<Before>;

  // Whether the effects of an operation that has ended are still to come, as on a device. Does not
  // throw.
  using Lasts = std::function<bool()>;

  // Those that have to end, or whose effects have to come, before an operation with these effects
  // begins. A message that is only still to be sent from memory that the operation writes need not
  // end: it is sent from a copy, which has to be there. Of an operation whose effects only are to come
  // the pointer may be empty.
  Earlier before(const Effects& effects);

  // All in flight that were added as collectives.
  Earlier collectives();

  void add(const std::shared_ptr<Op>& op, Effects effects, bool is_collective, Lasts lasts = nullptr);

  // Whether nothing is in flight, and no effect is to come. A call of the same thread that was added before is seen.
  bool empty() const { return size_.load(std::memory_order_acquire) == 0; }

 private:
  struct Entry {
    std::weak_ptr<Op> op;  // the caller's memory must not live as long as the entry
    Effects effects;
    bool is_collective;
    Lasts lasts;

    bool has_ended() const {
      const std::shared_ptr<const Op> one = op.lock();
      return one == nullptr || one->completion().done();
    }
  };

  // Asks for effects that are still to come only of a call with memory of a device: a host may not
  // ask while work for a device is captured.
  void forget_ended(bool on_device) TUCC_REQUIRES(mutex_);

  Mutex mutex_;  // threads may call at once
  std::vector<Entry> entries_ TUCC_GUARDED_BY(mutex_);
  std::atomic<std::size_t> size_{0};
};

}  // namespace torch_ucc
