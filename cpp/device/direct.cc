#include "device/direct.h"

#include <exception>

#include "work/fence.h"

namespace torch_ucc {

template <typename Type>
std::optional<Type> MemoryTypes<Type>::of(c10::Device device) {
  if (!wanted_) {
    return std::nullopt;
  }
  const auto it = entries_.find(c10::DeviceTypeName(device.type(), /*lower_case=*/true));
  if (it != entries_.end() && it->second.type) {
    return it->second.type;
  }
  if (!warned_.exchange(true, std::memory_order_relaxed)) {
    TORCH_WARN("ucc: ", operations_, " of tensors on ", device.str(), " are copied through the memory of the host in spite of ",
               setting_, ", because ",
               it == entries_.end() ? std::string("torch-ucc does not know the memory type of ") + library_ + " for such a device"
                                    : it->second.why_not);
  }
  return std::nullopt;
}

template class MemoryTypes<MessageMemory>;
template class MemoryTypes<ucc_memory_type_t>;

void Direct::begin(LoopToken& token, const c10::Stream& stream) {
  token.check();
  ++under_way_;
  latest_ = stream;
}

void Direct::end(LoopToken& token) {
  token.check();
  --under_way_;
}

// If the device is the current one already, as the first device is, the guard alone leaves a thread
// that never used it without a driver context. So an event is recorded there once, which makes a
// context. If the device cannot do that any more, the error appears where the operation asks for
// its stream.
Direct::OnDevice::OnDevice(LoopToken& token, const Direct& direct) noexcept {
  token.check();
  if (direct.under_way_ == 0) {
    return;
  }
  try {
    thread_local std::optional<c10::Device> used;
    guard_.reset_device(direct.latest_->device());
    if (used != direct.latest_->device()) {
      Fence(*direct.latest_).raise();
      used = direct.latest_->device();
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): see above
  }
}

std::optional<c10::Device> Direct::use_current_device() {
  const std::optional<c10::DeviceType> type = at::getAccelerator();
  if (!type) {
    return std::nullopt;
  }
  try {
    const c10::Device device = c10::impl::VirtualGuardImpl(*type).getDevice();
    Fence(Fence::current_stream(device)).raise();
    return device;
  } catch (const std::exception&) {  // torch was built for a kind of device that this host lacks
    return std::nullopt;
  }
}

}  // namespace torch_ucc
