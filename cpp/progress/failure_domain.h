// What fails together: the operations of a group.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/thread_annotations.h"
#include "progress/loss.h"

namespace torch_ucc {

// Fails once, for good, with the first reason. Any thread.
class FailureDomain {
 public:
  explicit FailureDomain(std::string name) : name_(std::move(name)) {}
  FailureDomain(const FailureDomain&) = delete;
  FailureDomain& operator=(const FailureDomain&) = delete;

  const std::string& name() const { return name_; }

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Only valid once failed().
  const Status& failure() const { return failure_; }

  // What can be told about those who keep its operations waiting, for the
  // report of one that timed out; empty: nothing.
  void set_observer(std::function<std::string()> observer) { observer_ = std::move(observer); }  // before it is used
  std::string observe() const { return observer_ ? observer_() : std::string(); }

  // True if this call failed it.
  bool fail(Status reason) {
    const MutexLock lock(mutex_);
    if (failed()) {
      return false;
    }
    failure_ = std::move(reason);
    failed_.store(true, std::memory_order_release);
    return true;
  }

  // A member is lost: operations that need nothing more from it may still end well, so this alone
  // fails nothing.
  void lose(Loss loss) {
    const MutexLock lock(mutex_);
    losses_.push_back(std::move(loss));
    lost_.store(true, std::memory_order_release);
  }
  bool has_lost() const { return lost_.load(std::memory_order_acquire); }
  std::vector<Loss> losses() const {
    const MutexLock lock(mutex_);
    return losses_;
  }

  // Of its collectives, which pass each other's data on. Of the engine that drives them, with the
  // baton.
  Quiet& quiet() { return quiet_; }

 private:
  const std::string name_;
  std::function<std::string()> observer_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> lost_{false};
  mutable Mutex mutex_;  // the first of several threads that report a failure wins
  Status failure_;       // written once before failed_
  std::vector<Loss> losses_ TUCC_GUARDED_BY(mutex_);
  Quiet quiet_;
};

}  // namespace torch_ucc
