// What PyTorch's own tools are told of a call, and what may be asked of its data.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "base/deadline.h"
#include "compat/torch_compat.h"
#include "ops/call.h"
#include "ops/prepared.h"

namespace torch_ucc {

std::int64_t elements_in(const Tensors& tensors);

// An event "record_param_comms" with op, sizes and group; the caller knows that somebody profiles.
// `first` is the first global rank of the group, `stride` the distance to the second.
void tell_profiler(const Call& call, const Prepared& prepared, std::int64_t first, std::int64_t stride);

// Throws if the data that this rank contributes contains a NaN. Called before anything is sent.
void check_for_nans(const Call& call, const Prepared& prepared);

// The user's hook for operations that ended, and how many it has still to be told of. Any thread.
class CompletionHook {
 public:
  using Function = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  explicit CompletionHook(Function function) : function_(std::move(function)) {}

  void expect();  // one more
  void run(const std::shared_ptr<c10d::WorkInfo>& info);
  // Sleeps until it was told of all; false if the deadline passed first.
  bool wait(Deadline deadline);

 private:
  const Function function_;
  std::mutex mutex_;  // for the condition variable
  std::condition_variable told_;
  int pending_ = 0;
};

}  // namespace torch_ucc
