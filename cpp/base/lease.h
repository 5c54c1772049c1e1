// The permission of an operation to touch memory that belongs to its caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace torch_ucc {

// An operation copies from and to its caller's memory only while a thread holds a Use; one thread
// at a time holds it. A thread that ends the operation before its result is stored revokes the
// lease first: afterwards no Use succeeds, and the memory belongs to the caller again. All members
// may be called from any thread.
class MemoryLease {
 public:
  // Holds the memory while the object lives; false if the lease was revoked or settled. The
  // constructor waits while another thread holds a Use.
  class Use {
   public:
    explicit Use(MemoryLease& lease) : lease_(lease), held_(lease.begin()) {}
    ~Use() {
      if (held_) {
        lease_.end(kInUse);
      }
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

    explicit operator bool() const { return held_; }

    // Only if held. The holder calls this when the result is stored and the operation is about to
    // complete: from then on revoke() returns false and does not call `last_look`.
    void settle() { lease_.state_.fetch_or(kSettled, std::memory_order_release); }

   private:
    MemoryLease& lease_;
    const bool held_;
  };

  MemoryLease() = default;
  MemoryLease(const MemoryLease&) = delete;
  MemoryLease& operator=(const MemoryLease&) = delete;

  // Waits for a Use that another thread holds, which lasts as long as one copy, then calls
  // `last_look` before the memory belongs to the caller again. If several threads revoke the lease,
  // one of them calls `last_look`, and all return after that call. Returns false if the lease was
  // settled: another thread completes the operation.
  template <typename LastLook>
  bool revoke(LastLook&& last_look) {
    if ((state_.fetch_or(kRevoked, std::memory_order_acq_rel) & kRevoked) == 0) {
      wait_while(kInUse);
      if (!is(kSettled)) {
        std::forward<LastLook>(last_look)();
      }
      end(kRevoking);
    } else {
      wait_while(kRevoking);
    }
    return !is(kSettled);
  }

  // For a thread that got no Use from a revoked lease: waits until revoke() has called `last_look`.
  void wait_until_revoked() const { wait_while(kRevoking); }

 private:
  static constexpr std::uint32_t kInUse = 1;
  static constexpr std::uint32_t kRevoked = 2;
  static constexpr std::uint32_t kRevoking = 4;  // set from the start until revoke() has ended
  static constexpr std::uint32_t kSettled = 8;
  static constexpr std::uint32_t kAwaited = 16;  // some thread waits for the end of a Use

  bool is(std::uint32_t bit) const { return (state_.load(std::memory_order_acquire) & bit) != 0; }

  bool begin() {
    std::uint32_t seen = kRevoking;
    while (!state_.compare_exchange_strong(seen, seen | kInUse, std::memory_order_acq_rel)) {
      if ((seen & (kRevoked | kSettled)) != 0) {
        return false;
      }
      if ((seen & kInUse) != 0) {
        state_.fetch_or(kAwaited, std::memory_order_acq_rel);
        wait_while(kInUse);
        seen = state_.load(std::memory_order_acquire);
        if ((seen & (kRevoked | kSettled)) != 0) {
          return false;
        }
        seen &= ~kInUse;
      }
    }
    return true;
  }

  void end(std::uint32_t bit) {
    if ((state_.fetch_and(~bit, std::memory_order_acq_rel) & (kRevoked | kAwaited)) != 0) {
      state_.notify_all();
    }
  }

  void wait_while(std::uint32_t bit) const {
    for (std::uint32_t seen = state_.load(std::memory_order_acquire); (seen & bit) != 0;
         seen = state_.load(std::memory_order_acquire)) {
      state_.wait(seen, std::memory_order_acquire);
    }
  }

  std::atomic<std::uint32_t> state_{kRevoking};
};

}  // namespace torch_ucc
