// The operators that the tests use. Each is queued on the current stream of its tensor's device,
// and works on memory where it is when its time comes: nothing keeps it alive meanwhile.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "device.h"
#include "memory.h"

namespace fake {
namespace {

// A tensor by its address.
class Operand {
 public:
  explicit Operand(const at::Tensor& tensor)
      : sizes_(tensor.sizes().vec()),
        strides_(tensor.strides().vec()),
        dtype_(tensor.scalar_type()),
        conj_(tensor.is_conj()),
        neg_(tensor.is_neg()),
        address_(tensor.numel() == 0 ? nullptr : const_cast<void*>(tensor.const_data_ptr())) {
    if (address_ != nullptr && tensor.is_privateuseone()) {
      address_ = reach(address_);
    }
  }

  at::Tensor tensor() const {
    at::Tensor tensor = address_ == nullptr ? at::empty(sizes_, at::TensorOptions().dtype(dtype_))
                                            : at::from_blob(address_, sizes_, strides_, at::TensorOptions().dtype(dtype_));
    tensor._set_conj(conj_);
    tensor._set_neg(neg_);
    return tensor;
  }

 private:
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
  at::ScalarType dtype_;
  bool conj_;
  bool neg_;
  void* address_;
};

// The same, or the value of a number on the host, as in `x + 1`.
std::function<at::Tensor()> operand(const at::Tensor& tensor) {
  if (tensor.is_cpu() && tensor.dim() == 0) {
    return [value = tensor.clone()] { return value; };
  }
  return [by_address = Operand(tensor)] { return by_address.tensor(); };
}

// Runs `kernel` on the stream.
void launch(c10::Device device, std::function<void()> kernel) {
  current_stream(device).launch([kernel = std::move(kernel)] {
    const c10::InferenceMode below_autograd(true);
    kernel();
  });
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                 std::optional<at::Device> device, std::optional<bool> /*pin*/, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(at::Device(at::kPrivateUse1)));
  return at::detail::empty_generic(sizes, c10::GetAllocator(at::kPrivateUse1), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/, std::optional<at::Device> device, std::optional<bool> /*pin*/) {
  const c10::DeviceGuard guard(device.value_or(at::Device(at::kPrivateUse1)));
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(at::kPrivateUse1),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

bool must_wait(const at::Tensor& tensor, bool non_blocking) {
  return tensor.is_cpu() && tensor.numel() != 0 && !(non_blocking && is_pinned(tensor.const_data_ptr()));
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (self.is_same(source)) {
    return self;
  }
  const c10::Device device = self.is_privateuseone() ? self.device() : source.device();
  if (self.is_privateuseone() && source.is_privateuseone() && self.device() != source.device()) {
    current_stream(device).wait_for(current_stream(source.device()).mark());
  }
  const bool unattended = self.is_cpu() && !must_wait(self, non_blocking);
  launch(device, [to = Operand(self), from = operand(source), unattended] {
    if (unattended) {
      wait_to_arrive();
    }
    to.tensor().copy_(from());
  });
  if (must_wait(self, non_blocking) || (source.dim() != 0 && must_wait(source, non_blocking))) {
    current_stream(device).mark()->wait();
  }
  return self;
}

at::Tensor& fill_(at::Tensor& self, const at::Scalar& value) {
  launch(self.device(), [self = Operand(self), value] { self.tensor().fill_(value); });
  return self;
}

at::Tensor& zero_(at::Tensor& self) { return fake::fill_(self, at::Scalar(0)); }

at::Tensor& add_(at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  launch(self.device(), [self = Operand(self), other = operand(other), alpha] { self.tensor().add_(other(), alpha); });
  return self;
}

at::Tensor& mul_(at::Tensor& self, const at::Tensor& other) {
  launch(self.device(), [self = Operand(self), other = operand(other)] { self.tensor().mul_(other()); });
  return self;
}

at::Tensor& div_(at::Tensor& self, const at::Tensor& other) {
  launch(self.device(), [self = Operand(self), other = operand(other)] { self.tensor().div_(other()); });
  return self;
}

at::Tensor& div_by_mode(at::Tensor& self, const at::Tensor& other, std::optional<c10::string_view> mode) {
  launch(self.device(), [self = Operand(self), other = operand(other),
                         mode = mode ? std::optional(std::string(*mode)) : std::nullopt] { self.tensor().div_(other(), mode); });
  return self;
}

// What was in it is lost, if it grows.
const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<at::MemoryFormat> /*format*/) {
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  if (self.storage().nbytes() < self.nbytes()) {
    at::native::resize_bytes_nocuda(self.storage(), self.nbytes());
  }
  return self;
}

// Of what was computed on the host.
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(to.sizes() == from.sizes(), "the fake accelerator resizes no tensor");
  return const_cast<at::Tensor&>(to).copy_(from);
}

at::Scalar item(const at::Tensor& self) { return self.cpu().item(); }

void record_stream(at::Tensor& self, c10::Stream stream) {
  if (self.storage().data() != nullptr) {
    device_record(self.storage().mutable_data(), stream_of(stream));
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("copy_", &copy_);
  m.impl("fill_.Scalar", &fill_);
  m.impl("zero_", &zero_);
  m.impl("add_.Tensor", &add_);
  m.impl("mul_.Tensor", &mul_);
  m.impl("div_.Tensor", &div_);
  m.impl("div_.Tensor_mode", &div_by_mode);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &item);
  m.impl("resize_", &resize_);
  m.impl("record_stream", &record_stream);
}

// All others are computed on the host once the stream has come to them, and copied back: what a
// training needs.
void on_the_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_host>()); }

}  // namespace
}  // namespace fake
