#include "device/staging.h"

#include <string>
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

std::shared_ptr<Copies> Staging::begin(c10::ArrayRef<Prepared*> all) {
  if (copies_ == nullptr) {
    return nullptr;
  }
  bool needed = false;
  for (Prepared* prepared : all) {
    for (Tensors* tensors : {&prepared->inputs, &prepared->outputs}) {
      for (at::Tensor& tensor : *tensors) {
        tensor = copies_->original_of(tensor);
      }
    }
    needed = needed || prepared->path != Path::nothing || prepared->store;
  }
  if (needed) {
    copies_->begin();
  }
  return needed ? copies_ : nullptr;
}

at::Tensor& Staging::on_host(at::Tensor& tensor, Copies::Use use) {
  if (!tensor.defined()) {
    return tensor;  // refused where its name is known
  }
  belongs_to(tensor.device());
  if (copies_ == nullptr) {
    return tensor;
  }
  check_dense(call_, tensor, "a tensor");
  if (use.written) {
    check_writable(call_, tensor, "a tensor");
  }
  return handed_out_->tensors.emplace_back(copies_->add(tensor, use));
}

Tensors& Staging::on_host(Tensors& tensors, Copies::Use use) {
  look_at(tensors);
  if (copies_ == nullptr) {
    return tensors;
  }
  Tensors& list = handed_out_->lists.emplace_back();
  for (at::Tensor& tensor : tensors) {
    list.push_back(on_host(tensor, use));
  }
  return list;
}

TensorLists& Staging::on_host(TensorLists& lists, Copies::Use use) {
  for (const Tensors& list : lists) {
    look_at(list);
  }
  if (copies_ == nullptr) {
    return lists;
  }
  TensorLists& all = handed_out_->lists_of_lists.emplace_back();
  for (Tensors& list : lists) {
    all.push_back(on_host(list, use));
  }
  return all;
}

void Staging::look_at(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) {
      belongs_to(tensor.device());
    }
  }
}

void Staging::belongs_to(c10::Device device) {
  if (device_ == device) {
    return;
  }
  if (device_) {
    refuse_value(call_, "its tensors are on " + device_->str() + " and on " + device.str() + ": they must be on one device");
  }
  device_ = device;
  if (device.is_cpu() || !at::isAccelerator(device.type())) {
    return;
  }
  if (is_capturing(Fence::current_stream(device))) {
    refuse_unsupported(call_, "the current stream of " + device.str() +
                                  " is being captured into a graph, and the part of the host cannot be: call it outside");
  }
  copies_ = std::make_shared<Copies>(device, lanes_.of(device));
  handed_out_ = std::make_unique<HandedOut>();
}

}  // namespace torch_ucc
