// From a tensor to the bytes that UCC sees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "compat/torch_compat.h"
#include "ops/call.h"

namespace torch_ucc {

// "float32", as torch.float32 prints it without the module.
std::string dtype_name(at::ScalarType dtype);
// The name of a dtype as a text that lives as long as the process; "" for Undefined.
const char* lasting_dtype_name(at::ScalarType dtype);

// Returns every text that a call record (trace/event.h) may point to: the names of operations,
// dtypes and reduce ops.
std::vector<const char*> lasting_texts();
// "float32[2, 3]"
std::string shape_text(const at::Tensor& tensor);

// The tensor of a list that must hold exactly one; refuses others. `what` names the argument.
at::Tensor& only_tensor(const Call& call, std::vector<at::Tensor>& tensors, const char* what);

// Refuses a tensor whose elements do not lie in memory as they are: undefined, sparse, quantized,
// or with a storage that is too small.
void check_dense(const Call& call, const at::Tensor& tensor, const char* what);
// Refuses what check_dense() refuses, and a tensor that is not on the host, unless
// `call.device_memory` is set.
void check_sendable(const Call& call, const at::Tensor& tensor, const char* what);

// Refuses a tensor that was expanded: its elements share memory, so it cannot hold a result.
void check_writable(const Call& call, const at::Tensor& tensor, const char* what);

// The address of the data of a plain tensor: data_of() to write there, source_of() only to read.
inline void* data_of(const at::Tensor& tensor) { return tensor.mutable_data_ptr(); }
inline const void* source_of(const at::Tensor& tensor) { return tensor.const_data_ptr(); }
inline std::size_t bytes_of(const at::Tensor& tensor) { return tensor.nbytes(); }

// Whether the bytes of the tensor, one after the other, are its elements: contiguous, with no
// conjugation or negation pending.
inline bool is_plain(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }
// The tensor itself if it is plain, else a plain copy of what it holds now.
at::Tensor plain(const at::Tensor& tensor);

// Where the data of a tensor can be received: the tensor itself if it is plain, else a new plain
// tensor of the same shape.
at::Tensor landing_for(const at::Tensor& tensor);
// Whether two plain tensors share memory.
bool shares_memory(const at::Tensor& a, const at::Tensor& b);

// Copies without autograd, also into inference tensors. Any thread. Both tensors must have the same
// number of elements; their shapes may differ.
void copy_into(const at::Tensor& destination, const at::Tensor& source);
// Copy between a tensor and the elements of `all` that follow the first `at` elements, as many as
// the tensor has. `all` must be plain. Any thread.
void copy_from_part(const at::Tensor& destination, const at::Tensor& all, std::int64_t at);
void copy_to_part(const at::Tensor& all, std::int64_t at, const at::Tensor& source);
// Lets autograd notice that `tensor` was written, in case autograd has kept it.
void note_written(const at::Tensor& tensor);

}  // namespace torch_ucc
