// Host memory that a device copies from and to, used again and again.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/thread_annotations.h"
#include "compat/torch_compat.h"
#include "work/fence.h"

namespace torch_ucc {

// Pinned where the device offers that. Of one type of device; any thread.
class HostBlocks {
 public:
  // What is not in use is kept up to this many bytes in all.
  static constexpr std::size_t kKept = std::size_t{512} << 20;

  // The one of this process, never destroyed: devices may still copy when the process ends.
  static HostBlocks& of(c10::DeviceType type);

  // A tensor of at least so many bytes, whose memory no copy uses any more.
  at::Tensor take(std::size_t bytes);
  // Gives one back; it may still be in use up to the fence.
  void give(at::Tensor block, std::shared_ptr<const Fence> used_until);

 private:
  struct Idle {
    at::Tensor block;
    std::shared_ptr<const Fence> used_until;
  };

  explicit HostBlocks(c10::DeviceType type) : type_(type) {}
  at::Tensor make(std::size_t bytes) const;

  const c10::DeviceType type_;
  Mutex mutex_;  // callers take, whoever ends an operation gives
  std::vector<Idle> idle_ TUCC_GUARDED_BY(mutex_);
  std::size_t kept_ TUCC_GUARDED_BY(mutex_) = 0;  // bytes of idle_
};

}  // namespace torch_ucc
