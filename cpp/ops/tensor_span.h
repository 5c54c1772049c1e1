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
// The same as a text that lives as long as the process; "" for none.
const char* lasting_dtype_name(at::ScalarType dtype);
// "float32[2, 3]"
std::string shape_text(const at::Tensor& tensor);

// The tensor of a list that must hold exactly one; refuses others. `what` names the argument.
at::Tensor& only_tensor(const Call& call, std::vector<at::Tensor>& tensors, const char* what);

// Refuses a tensor whose elements do not lie in memory as they are: undefined, sparse or quantized.
void check_dense(const Call& call, const at::Tensor& tensor, const char* what);
// The same, and one whose memory UCC and UCX must not see.
void check_sendable(const Call& call, const at::Tensor& tensor, const char* what);

// Refuses a tensor that cannot be written: one that was expanded, whose elements share memory.
void check_writable(const Call& call, const at::Tensor& tensor, const char* what);

// Where UCC finds the data of a plain tensor, to write it or only to read it.
inline void* data_of(const at::Tensor& tensor) { return tensor.mutable_data_ptr(); }
inline const void* source_of(const at::Tensor& tensor) { return tensor.const_data_ptr(); }
inline std::size_t bytes_of(const at::Tensor& tensor) { return tensor.nbytes(); }

// Whether the bytes of the tensor, one after the other, are its elements: contiguous, with no
// conjugation or negation pending.
inline bool is_plain(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg(); }
// The tensor itself if it is plain, else a plain copy of what it holds now.
at::Tensor plain(const at::Tensor& tensor);

// Where the data of a tensor can be received: the tensor itself if it is plain, else a plain one of
// its shape.
at::Tensor landing_for(const at::Tensor& tensor);
// Of plain tensors.
bool shares_memory(const at::Tensor& a, const at::Tensor& b);

// Copies as the caller's thread would: no autograd, and into inference tensors as well. For any
// thread. As many elements on both sides, whatever their shapes.
void copy_into(const at::Tensor& destination, const at::Tensor& source);
// The same from and to the elements of `all`, which is plain, that follow the first `at`: as many
// as the other tensor has.
void copy_from_part(const at::Tensor& destination, const at::Tensor& all, std::int64_t at);
void copy_to_part(const at::Tensor& all, std::int64_t at, const at::Tensor& source);
// Has autograd notice that a tensor which it has kept was written, as these do.
void note_written(const at::Tensor& tensor);

}  // namespace torch_ucc
