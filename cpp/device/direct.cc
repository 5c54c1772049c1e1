#include "device/direct.h"

#include <exception>

#include "work/fence.h"

namespace torch_ucc {

Direct::Direct(const NamedValues& wanted, const Ask& ask) {
  for (const auto& [device, name] : wanted) {
    wanted_.emplace(device, Wanted{name, ask(name)});
  }
}

std::optional<ucs_memory_type_t> Direct::type_of(c10::Device device) {
  if (wanted_.empty()) {
    return std::nullopt;
  }
  const auto it = wanted_.find(c10::DeviceTypeName(device.type(), /*lower_case=*/true));
  if (it != wanted_.end() && it->second.type) {
    return it->second.type;
  }
  if (!warned_.exchange(true, std::memory_order_relaxed)) {
    TORCH_WARN("ucc: messages of tensors on ", device.str(),
               " go by way of the host in spite of TORCH_UCC_DEVICE_P2P=direct, since ",
               it == wanted_.end() ? "torch_ucc does not know what UCX calls memory of such a device"
                                   : "this UCX takes no memory of the type '" + it->second.name +
                                         "': its module for that is missing or found no device, or UCX_TLS leaves it out");
  }
  return std::nullopt;
}

void Direct::begin(LoopToken& token, const c10::Stream& stream) {
  token.check();
  ++under_way_;
  latest_ = stream;
}

void Direct::end(LoopToken& token) {
  token.check();
  --under_way_;
}

// A guard alone leaves a thread that never used its device without a context of the driver where that device is the current one
// anyway, as the first is: what is queued there once makes one. A device that cannot do that any more says so where the
// operation asks for its stream.
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

}  // namespace torch_ucc
