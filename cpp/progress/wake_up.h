// How the background thread sleeps, and is woken.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

#include "base/deadline.h"

namespace torch_ucc {

// One thread sleeps in it, here and nowhere else; any thread wakes it. `has_work` is asked by both.
class WakeUp {
 public:
  explicit WakeUp(std::function<bool()> has_work) : has_work_(std::move(has_work)) {}

  // For good.
  void stop() {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_.store(true, std::memory_order_seq_cst);
    wake_.notify_one();
  }
  bool stopped() const { return stopped_.load(std::memory_order_seq_cst); }

  // From a sleep, not from a nap. The flag spares the system call while the thread is up anyway. It
  // looks for work after it raised the flag, and here work was counted before the flag is read: one
  // of the two sees the other.
  void wake_if_asleep() {
    if (asleep_.load(std::memory_order_seq_cst) && has_work_()) {
      notify();
    }
  }

  // From a nap that can be cut short, too.
  void rouse() {
    if (has_work_()) {
      roused_.store(true);
      notify();
    }
  }

  // From any nap: somebody wants what is under way. Rings only if nobody did so before.
  void call() {
    if (has_work_() && !called_.exchange(true)) {
      notify();
    }
  }
  // Whether call() was called since the last time; in vain if there is no work now.
  bool take_call() { return called_.exchange(false); }

  // Returns early when stopped or called, and, if it can be, when roused.
  void nap(Clock::duration duration, bool can_be_roused) {
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait_for(lock, duration, [&] { return stopped() || called_.load() || (can_be_roused && roused_.load()); });
    roused_.store(false);  // it is up, and looks for work before it naps for long
  }

  // Until there is work, or stopped. Called in vain, the thread forgets that before it looks for
  // work a last time.
  void sleep() {
    const auto awaited = [this] { return stopped() || has_work_(); };
    std::unique_lock<std::mutex> lock(mutex_);
    asleep_.store(true, std::memory_order_seq_cst);
    wake_.wait(lock, [&] {
      if (awaited()) {
        return true;
      }
      called_.store(false);
      return awaited();
    });
    roused_.store(false);
    asleep_.store(false, std::memory_order_seq_cst);
  }

 private:
  void notify() {
    const std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_one();
  }

  const std::function<bool()> has_work_;
  std::mutex mutex_;  // a plain one, for the condition variable
  std::condition_variable wake_;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> called_{false};
  std::atomic<bool> roused_{false};
  std::atomic<bool> stopped_{false};
};

}  // namespace torch_ucc
