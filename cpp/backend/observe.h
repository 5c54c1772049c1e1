// Reports calls to PyTorch's own tools, and checks the data of calls for NaN.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "base/deadline.h"
#include "base/thread_annotations.h"
#include "compat/torch_compat.h"
#include "ops/call.h"
#include "ops/prepared.h"

namespace torch_ucc {

std::int64_t elements_in(const Tensors& tensors);

// Records an event "record_param_comms" with op, sizes and group. Called only if a profiler runs.
// `first` is the first global rank of the group, `stride` the distance to the second.
void tell_profiler(const Call& call, const Prepared& prepared, std::int64_t first, std::int64_t stride);

// Throws if the data that this rank contributes contains a NaN. Called before anything is sent.
void check_for_nans(const Call& call, const Prepared& prepared);

// The user's hook for operations that have ended. Counts the operations for which the hook has
// still to run. Any thread.
class CompletionHook {
 public:
  using Function = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  explicit CompletionHook(Function function) : function_(std::move(function)) {}

  void expect();  // counts one more operation
  void run(const std::shared_ptr<c10d::WorkInfo>& info);
  // Sleeps until the hook has run for all operations. Returns false if the deadline passed first.
  bool wait(Deadline deadline);

 private:
  const Function function_;
  std::mutex mutex_;  // for the condition variable
  std::condition_variable told_;
  int pending_ = 0;
};

// The user's functions that run before a group is aborted, by an id of the user's. They run once,
// whatever ends the group. Any thread.
class AbortHooks {
 public:
  using Function = std::function<void()>;

  void add(std::int64_t id, Function function);  // replaces one of this id
  void remove(std::int64_t id);
  bool empty();
  // Runs them in this thread, in the order of their ids, unless they have run before.
  void run();

 private:
  // Shared, since a copy or the end of a function of Python would take the GIL under the mutex
  using Functions = std::map<std::int64_t, std::shared_ptr<const Function>>;

  Mutex mutex_;  // never held while a function runs
  Functions functions_ TUCC_GUARDED_BY(mutex_);
  bool have_run_ TUCC_GUARDED_BY(mutex_) = false;
};

}  // namespace torch_ucc
