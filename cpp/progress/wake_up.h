// How the background thread sleeps and naps, and how other threads wake it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

#include "base/deadline.h"

namespace torch_ucc {

// Only the background thread calls nap(), sleep() and take_call(). Any thread may call the other
// members. `has_work` may be called by all of these threads.
class WakeUp {
 public:
  explicit WakeUp(std::function<bool()> has_work) : has_work_(std::move(has_work)) {}

  // Ends every sleep and nap, also later ones.
  void stop() {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_.store(true, std::memory_order_seq_cst);
    wake_.notify_one();
  }
  bool stopped() const { return stopped_.load(std::memory_order_seq_cst); }

  // Wakes the thread from a sleep, not from a nap, if there is work. The flag saves the system call
  // while the thread is awake. No wake-up is lost: the caller counts its work before it reads the
  // flag, and the thread raises the flag before it looks for work.
  void wake_if_asleep() {
    if (asleep_.load(std::memory_order_seq_cst) && has_work_()) {
      notify();
    }
  }

  // Wakes the thread from a sleep, or from a nap with `can_be_roused`, if there is work.
  void rouse() {
    if (has_work_()) {
      roused_.store(true);
      notify();
    }
  }

  // Wakes the thread from a sleep or any nap, if there is work, and asks it to drive. Only the
  // first call before take_call() has an effect.
  void call() {
    if (has_work_() && !called_.exchange(true)) {
      notify();
    }
  }
  // Returns whether call() was called since the last take_call().
  bool take_call() { return called_.exchange(false); }

  // Naps for `duration`. Ends early after stop() or call() and, if `can_be_roused`, after rouse().
  void nap(Clock::duration duration, bool can_be_roused) {
    std::unique_lock<std::mutex> lock(mutex_);
    wake_.wait_for(lock, duration, [&] { return stopped() || called_.load() || (can_be_roused && roused_.load()); });
    roused_.store(false);  // the thread is awake, and looks for work before its next nap
  }

  // Sleeps until there is work, or until stop(). If there is no work, an earlier call() is
  // forgotten. The thread looks for work once more after that, so that it misses no call() that
  // came with work.
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
  std::mutex mutex_;  // a std::mutex, for the condition variable
  std::condition_variable wake_;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> called_{false};
  std::atomic<bool> roused_{false};
  std::atomic<bool> stopped_{false};
};

}  // namespace torch_ucc
