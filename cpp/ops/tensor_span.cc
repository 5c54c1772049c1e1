#include "ops/tensor_span.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>

#include "ops/operations.h"
#include "ops/reduce_rule.h"

namespace torch_ucc {

std::string dtype_name(at::ScalarType dtype) { return std::string(c10::getDtypeNames(dtype).first); }

const char* lasting_dtype_name(at::ScalarType dtype) {
  static const auto* const names = [] {
    auto* all = new std::array<std::string, static_cast<std::size_t>(at::ScalarType::NumOptions)>();
    for (std::size_t i = 0; i < all->size(); ++i) {
      const auto each = static_cast<at::ScalarType>(i);
      (*all)[i] = each == at::ScalarType::Undefined ? "" : dtype_name(each);
    }
    return all;
  }();
  return (*names)[static_cast<std::size_t>(dtype)].c_str();
}

std::vector<const char*> lasting_texts() {
  std::vector<const char*> texts(operation::kTable.size());
  std::transform(operation::kTable.begin(), operation::kTable.end(), texts.begin(),
                 [](const Operation& operation) { return operation.name; });
  for (int dtype = 0; dtype < static_cast<int>(at::ScalarType::NumOptions); ++dtype) {
    texts.push_back(lasting_dtype_name(static_cast<at::ScalarType>(dtype)));
  }
  for (int op = 0; op < static_cast<int>(c10d::ReduceOp::UNUSED); ++op) {
    texts.push_back(reduce_op_name(static_cast<c10d::ReduceOp::RedOpType>(op)));
  }
  return texts;
}

std::string shape_text(const at::Tensor& tensor) {
  std::string text = dtype_name(tensor.scalar_type()) + "[";
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(tensor.size(i));
  }
  return text + "]";
}

at::Tensor& only_tensor(const Call& call, std::vector<at::Tensor>& tensors, const char* what) {
  if (tensors.size() != 1) {
    refuse_value(call, std::string(what) + " must hold exactly one tensor, not " + std::to_string(tensors.size()) +
                           ": one process works on one device");
  }
  return tensors.front();
}

void check_dense(const Call& call, const at::Tensor& tensor, const char* what) {
  if (!tensor.defined()) {
    refuse_value(call, std::string(what) + " is not a defined tensor");
  }
  if (tensor.layout() != at::kStrided) {
    refuse_unsupported(call, std::string(what) + " has a layout that is not dense (" + c10::str(tensor.layout()) +
                                 "): convert it with .to_dense()");
  }
  if (tensor.is_quantized()) {
    refuse_unsupported(call, std::string(what) + " is quantized: send its int_repr()");
  }
  const std::size_t needed =
      tensor.is_contiguous()
          ? static_cast<std::size_t>(tensor.storage_offset() * tensor.element_size()) + bytes_of(tensor)
          : at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), static_cast<std::size_t>(tensor.element_size()),
                                             static_cast<std::size_t>(tensor.storage_offset()));
  if (tensor.numel() != 0 && tensor.storage().nbytes() < needed) {
    refuse_value(call, std::string(what) + " " + shape_text(tensor) + " needs a storage of " + std::to_string(needed) +
                           " bytes, and its storage has " + std::to_string(tensor.storage().nbytes()) +
                           ": untyped_storage().resize_() has freed it or made it smaller");
  }
}

void check_sendable(const Call& call, const at::Tensor& tensor, const char* what) {
  check_dense(call, tensor, what);
  if (!tensor.device().is_cpu() && !call.device_memory) {
    refuse_unsupported(call, std::string(what) + " is on " + tensor.device().str() +
                                 ", which is neither the CPU nor an accelerator of this torch");
  }
}

void check_writable(const Call& call, const at::Tensor& tensor, const char* what) {
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    refuse_value(
        call, std::string(what) + " is expanded: several of its elements share memory, so it cannot hold a result; clone() it");
  }
}

at::Tensor plain(const at::Tensor& tensor) {
  if (is_plain(tensor)) {
    return tensor;
  }
  const c10::InferenceMode below_autograd(true);
  return tensor.resolve_conj().resolve_neg().contiguous();
}

at::Tensor landing_for(const at::Tensor& tensor) {
  if (is_plain(tensor)) {
    return tensor;
  }
  const c10::InferenceMode below_autograd(true);
  return at::empty(tensor.sizes(), tensor.options());
}

bool shares_memory(const at::Tensor& a, const at::Tensor& b) {
  const auto* const first = static_cast<const char*>(source_of(a));
  const auto* const second = static_cast<const char*>(source_of(b));
  return first < second + bytes_of(b) && second < first + bytes_of(a);
}

namespace {

// Up to this size, a copy takes less time than torch's dispatch. Torch copies larger tensors,
// because it has threads.
constexpr std::size_t kFewBytes = 64 << 10;

// Whether the bytes of `tensor` can be copied from or to the elements of `all` after the first
// `at`, and are few. `all` must be plain.
bool are_few_and_alike(const at::Tensor& tensor, const at::Tensor& all, std::int64_t at) {
  const std::size_t bytes = bytes_of(tensor);
  return bytes != 0 && bytes <= kFewBytes && at + tensor.numel() <= all.numel() && tensor.is_cpu() && all.is_cpu() &&
         tensor.scalar_type() == all.scalar_type() && is_plain(tensor);
}

void copy_bytes(const at::Tensor& destination, const void* source) {
  std::memmove(data_of(destination), source, bytes_of(destination));
  note_written(destination);
}

at::Tensor part_of(const at::Tensor& all, std::int64_t at, const at::Tensor& like) {
  return all.narrow(0, at, like.numel()).view(like.sizes());
}

std::size_t offset_of(const at::Tensor& all, std::int64_t at) {
  return static_cast<std::size_t>(at) * static_cast<std::size_t>(all.element_size());
}

}  // namespace

void note_written(const at::Tensor& tensor) {
  if (!tensor.is_inference()) {
    tensor.unsafeGetTensorImpl()->bump_version();
  }
}

void copy_into(const at::Tensor& destination, const at::Tensor& source) {
  if (is_plain(source) && destination.numel() == source.numel() && are_few_and_alike(destination, source, 0)) {
    copy_bytes(destination, source_of(source));
    return;
  }
  const c10::InferenceMode below_autograd(true);
  destination.copy_(source.reshape(destination.sizes()));
}

void copy_from_part(const at::Tensor& destination, const at::Tensor& all, std::int64_t at) {
  if (are_few_and_alike(destination, all, at)) {
    copy_bytes(destination, static_cast<const char*>(source_of(all)) + offset_of(all, at));
    return;
  }
  const c10::InferenceMode below_autograd(true);
  destination.copy_(part_of(all, at, destination));
}

void copy_to_part(const at::Tensor& all, std::int64_t at, const at::Tensor& source) {
  if (are_few_and_alike(source, all, at)) {
    std::memcpy(static_cast<char*>(data_of(all)) + offset_of(all, at), source_of(source), bytes_of(source));
    return;
  }
  const c10::InferenceMode below_autograd(true);
  part_of(all, at, source).copy_(source);
}

}  // namespace torch_ucc
