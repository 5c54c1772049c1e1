#include "device/host_blocks.h"

#include <algorithm>
#include <map>
#include <utility>

namespace torch_ucc {
namespace {

// Rounds up to one of eight sizes between a power of two and the next, so that blocks fit again.
std::size_t rounded(std::size_t bytes) {
  std::size_t step = 512;
  while (step * 16 <= bytes) {
    step *= 2;
  }
  return (bytes + step - 1) / step * step;
}

}  // namespace

HostBlocks& HostBlocks::of(c10::DeviceType type) {
  static Mutex mutex;
  static auto* const all = new std::map<c10::DeviceType, HostBlocks*>();
  const MutexLock lock(mutex);
  HostBlocks*& blocks = (*all)[type];
  if (blocks == nullptr) {
    blocks = new HostBlocks(type);
  }
  return *blocks;
}

at::Tensor HostBlocks::take(std::size_t bytes) {
  const std::size_t size = rounded(std::max<std::size_t>(bytes, 1));
  {
    const MutexLock lock(mutex_);
    const auto fit = std::find_if(idle_.begin(), idle_.end(),
                                  [size](const Idle& each) { return each.block.nbytes() == size && each.used_until->passed(); });
    if (fit != idle_.end()) {
      at::Tensor block = std::move(fit->block);
      idle_.erase(fit);
      kept_ -= size;
      return block;
    }
    std::erase_if(idle_, [this](const Idle& each) {
      mutex_.assert_held();
      if (kept_ <= kKept || !each.used_until->passed()) {
        return false;
      }
      kept_ -= each.block.nbytes();
      return true;
    });
  }
  return make(size);
}

void HostBlocks::give(at::Tensor block, std::shared_ptr<const Fence> used_until) {
  const MutexLock lock(mutex_);
  kept_ += block.nbytes();
  idle_.push_back({std::move(block), std::move(used_until)});
}

at::Tensor HostBlocks::make(std::size_t bytes) const {
  const c10::InferenceMode below_autograd(true);
  const auto size = static_cast<std::int64_t>(bytes);
  at::Allocator* pinned = nullptr;
  try {
    pinned = at::globalContext().getPinnedMemoryAllocator(type_);
  } catch (const c10::Error&) {  // no pinned memory: the device decides how asynchronous copies are
    return at::empty({size}, at::kByte);
  }
  return at::Tensor(
      at::detail::empty_generic({size}, pinned, c10::DispatchKeySet(c10::DispatchKey::CPU), at::kByte, std::nullopt));
}

}  // namespace torch_ucc
