// Makes operations of a group that use the same memory take effect in the order of their calls.
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

// Whether `a` writes memory that `b` reads or writes, or reads memory that `b` writes.
bool conflict(const Effects& a, const Effects& b);

// Knows the operations of a group that were posted by a call which did not wait for them. All
// members may be called from any thread.
class EffectOrder {
 public:
  // An operation that a later one has to wait for.
  struct Before {
    std::weak_ptr<const Op> op;
    // The later one waits for a copy of its inputs only, not for its end
    bool until_detached = false;

    bool over() const;
  };
  using Earlier = std::vector<Before>;

  // Whether the result of an operation that has ended is still on its way to a device. Does not
  // throw.
  using Lasts = std::function<bool()>;

  // Returns the operations that a new operation with these effects must wait for. If A waits for B,
  // and the new operation must wait for both, only A is in the list. The new operation waits until
  // each operation in the list has ended. If an earlier message only reads memory that the new
  // operation writes, before() makes the message send from a copy if possible; then the new
  // operation waits only until that copy exists. The list also has operations that have ended while
  // their results are still on the way to a device; their pointers may be empty.
  Earlier before(const Effects& effects);

  // Returns the collectives that have not ended.
  Earlier collectives();

  void add(const std::shared_ptr<Op>& op, Effects effects, bool is_collective, Lasts lasts = nullptr);

  // Whether no operation is in flight, and no result on its way to a device. Sees every operation
  // that the calling thread has added.
  bool empty() const { return size_.load(std::memory_order_acquire) == 0; }

 private:
  struct Entry {
    std::weak_ptr<Op> op;  // the caller's memory must not live as long as the entry
    Effects effects;
    bool is_collective;
    Lasts lasts;
  };

  // `on_device`: the call uses memory of a device. Only such a call queries events of the device,
  // since a query is an error while the thread captures a graph.
  void forget_ended(bool on_device) TUCC_REQUIRES(mutex_);

  Mutex mutex_;  // threads may call at once
  std::vector<Entry> entries_ TUCC_GUARDED_BY(mutex_);
  std::atomic<std::size_t> size_{0};
};

}  // namespace torch_ucc
