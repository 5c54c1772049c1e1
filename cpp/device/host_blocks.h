// Host memory that a device copies from and to, used again and again.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/thread_annotations.h"
#include "compat/torch_compat.h"
#include "work/fence.h"

namespace torch_ucc {

// A pool of blocks for one type of device. The blocks are pinned if the device offers that. Any
// thread.
class HostBlocks {
 public:
  // If idle blocks have more bytes than this in all, a take() that finds no fitting block frees
  // some.
  static constexpr std::size_t kKept = std::size_t{512} << 20;

  // The pool of this process for a type of device. It is never destroyed, because devices may still
  // copy when the process ends.
  static HostBlocks& of(c10::DeviceType type);

  // Returns a tensor of at least `bytes` bytes. No copy uses its memory any more.
  at::Tensor take(std::size_t bytes);
  // Gives a block back. Copies may still use it until `used_until` is passed.
  void give(at::Tensor block, std::shared_ptr<const Fence> used_until);

 private:
  struct Idle {
    at::Tensor block;
    std::shared_ptr<const Fence> used_until;
  };

  explicit HostBlocks(c10::DeviceType type) : type_(type) {}
  at::Tensor make(std::size_t bytes) const;

  const c10::DeviceType type_;
  Mutex mutex_;  // callers take blocks; threads that end operations give them back
  std::vector<Idle> idle_ TUCC_GUARDED_BY(mutex_);
  std::size_t kept_ TUCC_GUARDED_BY(mutex_) = 0;  // bytes of idle_
};

}  // namespace torch_ucc
