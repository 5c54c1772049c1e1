#include "device/copies.h"

#include <utility>

#include "ops/tensor_span.h"

namespace torch_ucc {
namespace {

// Its memory is not used for anything else before the stream has come this far, even if everybody drops it.
void keep_for(const c10::Stream& stream, const at::Tensor& tensor) {
  c10::impl::VirtualGuardImpl(stream.device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

}  // namespace

Copies::Copies(c10::Device device, const Lane& lane)
    : device_(device), arrived_(std::make_shared<Fence>(lane.from_device)), done_(std::make_shared<Fence>(lane.to_device)) {}

Copies::~Copies() {
  HostBlocks& blocks = HostBlocks::of(device_.type());
  for (Twin& twin : twins_) {
    if (twin.block.defined()) {
      blocks.give(std::move(twin.block), done_->raised() ? done_ : arrived_);
    }
  }
}

at::Tensor Copies::add(const at::Tensor& tensor, Use use) {
  const c10::InferenceMode below_autograd(true);
  const at::TensorOptions options = at::TensorOptions().dtype(tensor.scalar_type());
  Twin twin{tensor, {}, {}, use};
  if (tensor.numel() == 0) {
    twin.host = at::empty(tensor.sizes(), options);
  } else {
    twin.block = HostBlocks::of(device_.type()).take(tensor.nbytes());
    twin.host = at::from_blob(twin.block.mutable_data_ptr(), tensor.sizes(), options);
  }
  by_host_.emplace(twin.host.unsafeGetTensorImpl(), twins_.size());
  twins_.push_back(std::move(twin));
  return twins_.back().host;
}

void Copies::begin() {
  const c10::InferenceMode below_autograd(true);
  Fence called(Fence::current_stream(device_));
  called.raise();
  const c10::Stream& stream = arrived_->stream();
  const c10::StreamGuard guard(stream);
  called.block(stream);
  for (const Twin& twin : twins_) {
    if (twin.use.read && twin.tensor.numel() != 0) {
      keep_for(stream, twin.tensor);
      twin.host.copy_(plain(twin.tensor), /*non_blocking=*/true);
    }
  }
  arrived_->raise();
}

void Copies::end() {
  const c10::InferenceMode below_autograd(true);
  const c10::Stream& stream = done_->stream();
  const c10::StreamGuard guard(stream);
  for (const Twin& twin : twins_) {
    if (twin.use.written && twin.tensor.numel() != 0) {
      keep_for(stream, twin.tensor);
      twin.tensor.copy_(twin.host, /*non_blocking=*/true);
    }
  }
  done_->raise();
}

}  // namespace torch_ucc
