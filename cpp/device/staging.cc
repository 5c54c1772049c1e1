#include "device/staging.h"

#include <algorithm>
#include <string>
#include <utility>

#include "device/out_of_sight.h"
#include "ops/tensor_span.h"

namespace torch_ucc {

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
    if (is_native()) {
      queue_on_device(*prepared);
    } else {
      prepared->see_through();
    }
  }
  if (needed) {
    if (all.size() == 1) {  // of several operations, nothing says which stand-in belongs to which
      copies_->follow(*all.front());
    }
    copies_->come_behind_caller();
  }
  return needed ? copies_ : nullptr;
}

// Queues the loads behind the work that made the data, and the store behind the network. The
// operation keeps the buffers and the caller's tensors only until the store is queued on the other
// stream, so their memory is kept for that stream.
void Staging::queue_on_device(Prepared& prepared) {
  {
    const OutOfSight out_of_sight;
    prepared.fill();
  }
  if (prepared.store) {
    prepared.store = on_the_way_back([store = std::move(prepared.store)] {
      const OutOfSight out_of_sight;
      store();
    });
    for (const at::TensorList tensors :
         {at::TensorList(prepared.buffers), at::TensorList(prepared.inputs), at::TensorList(prepared.outputs)}) {
      for (const at::Tensor& tensor : tensors) {
        copies_->keep_for_the_way_back(tensor);
      }
    }
  }
}

std::function<void()> Staging::on_the_way_back(std::function<void()> store) const {
  if (copies_ == nullptr) {
    return store;
  }
  return [store = std::move(store), stream = copies_->done()->stream()] {
    const c10::StreamGuard guard(stream);
    store();
  };
}

at::Tensor& Staging::on_host(at::Tensor& tensor, Copies::Use use) {
  if (!tensor.defined()) {
    return tensor;  // the function that knows its name refuses it
  }
  belongs_to(tensor.device());
  if (copies_ == nullptr) {
    return tensor;
  }
  check_dense(call_, tensor, "a tensor");
  if (use.written) {
    check_writable(call_, tensor, "a tensor");
  }
  if (is_native()) {
    return tensor;
  }
  if (direct_ != nullptr && call_.is_message() && tensor.numel() != 0 && is_plain(tensor)) {
    memory_ = (*direct_)->messages.of(tensor.device());
    if (memory_) {
      copies_->leave_to(*direct_);
      return tensor;
    }
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
    refuse_value(call_, "its tensors are on " + device_->str() + " and on " + device.str() + ": they must be on the same device");
  }
  device_ = device;
  if (device.is_cpu() || !at::isAccelerator(device.type())) {
    return;
  }
  if (is_capturing(Fence::current_stream(device))) {
    refuse_unsupported(
        call_, "the current stream of " + device.str() +
                   " is being captured into a graph, which cannot contain work of the host: make this call outside the capture");
  }
  copies_ = std::make_shared<Copies>(device, lanes_.of(device));
  handed_out_ = std::make_unique<HandedOut>();
  if (call_.device_memory) {
    copies_->leave_to(*direct_);
  }
}

std::optional<ucc_memory_type_t> Staging::native_memory(const Call& call, at::TensorList tensors, Direct& direct) {
  const auto* const first =
      std::find_if(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.defined(); });
  if (first == tensors.end() || first->device().is_cpu() || !at::isAccelerator(first->device().type())) {
    return std::nullopt;
  }
  const c10::Device device = first->device();
  const std::optional<ucc_memory_type_t> memory = direct.collectives.of(device);
  if (memory && device != direct.device_of_collectives) {
    refuse_value(call, "with TORCH_UCC_DEVICE_COLLECTIVES=native its tensors must be on " + direct.device_of_collectives->str() +
                           ", which was the current device when UCC started, and are on " + device.str() +
                           ": call torch.accelerator.set_device_index() before init_process_group()");
  }
  return memory;
}

}  // namespace torch_ucc
