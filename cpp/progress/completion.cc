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
    const std::lock_guard<std::mutex> lock(mutex_);
    callbacks.swap(callbacks_);
    wake_.notify_all();
  }
  for (auto& callback : callbacks) {
    callback();
  }
  return true;
}

bool Completion::wait_for(Clock::duration duration) {
  std::unique_lock<std::mutex> lock(mutex_);
  if ((state_.fetch_or(kWatched, std::memory_order_acq_rel) & kDone) != 0) {
    return true;
  }
  return wake_.wait_for(lock, duration, [this] { return done(); });
}

void Completion::on_done(std::function<void()> callback) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if ((state_.fetch_or(kWatched, std::memory_order_acq_rel) & kDone) == 0) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

}  // namespace torch_ucc
