#include "progress/completion.h"

#include <utility>

namespace torch_ucc {

bool Completion::complete(Status status) {
  if ((state_.fetch_or(kClaimed, std::memory_order_acq_rel) & kClaimed) != 0) {
    return false;
  }
  status_ = std::move(status);
  if ((state_.fetch_or(kDone, std::memory_order_acq_rel) & kWatched) == 0) {
    return true;
  }
  std::vector<std::function<void()>> callbacks;
  {
    const MutexLock lock(mutex_);
    callbacks.swap(callbacks_);
  }
  for (auto& callback : callbacks) {
    callback();
  }
  return true;
}

void Completion::on_done(std::function<void()> callback) {
  {
    const MutexLock lock(mutex_);
    if ((state_.fetch_or(kWatched, std::memory_order_acq_rel) & kDone) == 0) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

}  // namespace torch_ucc
