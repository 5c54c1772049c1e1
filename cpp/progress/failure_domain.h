// A set of operations that fail together: the operations of one group.
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

// Fails once and for ever, with the first reason. Any thread, except where noted.
class FailureDomain {
 public:
  explicit FailureDomain(std::string name) : name_(std::move(name)) {}
  FailureDomain(const FailureDomain&) = delete;
  FailureDomain& operator=(const FailureDomain&) = delete;

  const std::string& name() const { return name_; }

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Only valid once failed().
  const Status& failure() const { return failure_; }

  // `observer` describes what the ranks that keep an operation waiting did last, for the message of
  // a timeout. It may return an empty text. To be set before the domain is used.
  void set_observer(std::function<std::string()> observer) { observer_ = std::move(observer); }
  std::string observe() const { return observer_ ? observer_() : std::string(); }

  // `listener` is called once when the domain fails, in the thread that reports it, which may hold
  // the baton: so it must neither block nor throw. If the domain has failed, it is called now.
  void set_listener(std::function<void()> listener) {
    {
      const MutexLock lock(mutex_);
      if (!failed()) {
        listener_ = std::move(listener);
        return;
      }
    }
    listener();
  }

  // Fails the domain with `reason`. Returns false if it had failed before.
  bool fail(Status reason) {
    std::function<void()> listener;
    {
      const MutexLock lock(mutex_);
      if (failed()) {
        return false;
      }
      failure_ = std::move(reason);
      failed_.store(true, std::memory_order_seq_cst);  // before a later is_storing()
      listener = std::exchange(listener_, nullptr);
    }
    if (listener) {
      listener();
    }
    return true;
  }

  // Stores that a member is lost. This does not fail the domain, since operations that need nothing
  // more from the member may still end well.
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

  // Lives while a thread stores the result of an operation of the domain. Whoever sees that the domain
  // has failed, and then that nobody is storing, knows that no result will be stored any more.
  class Storing {
   public:
    explicit Storing(FailureDomain& domain) : domain_(domain) { domain_.storing_.fetch_add(1, std::memory_order_seq_cst); }
    ~Storing() { domain_.storing_.fetch_sub(1, std::memory_order_release); }
    Storing(const Storing&) = delete;
    Storing& operator=(const Storing&) = delete;

   private:
    FailureDomain& domain_;
  };
  bool is_storing() const { return storing_.load(std::memory_order_seq_cst) != 0; }

  // About data for all collectives of the domain, since members pass on data of other members. The
  // engine uses it with the baton.
  Quiet& quiet() { return quiet_; }

 private:
  const std::string name_;
  std::function<std::string()> observer_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> lost_{false};
  std::atomic<int> storing_{0};
  mutable Mutex mutex_;  // the first of several threads that report a failure wins
  Status failure_;       // written once before failed_
  std::function<void()> listener_ TUCC_GUARDED_BY(mutex_);
  std::vector<Loss> losses_ TUCC_GUARDED_BY(mutex_);
  Quiet quiet_;
};

}  // namespace torch_ucc
