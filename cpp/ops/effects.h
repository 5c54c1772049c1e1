// What a prepared call does with the memory of its tensors.
#pragma once

#include "compat/torch_compat.h"
#include "ops/prepared.h"
#include "progress/effect_order.h"

namespace torch_ucc {

// Of a strided tensor; empty for others, whose memory nobody can name.
Region region_of(const at::Tensor& tensor);

// Before its tensors are moved elsewhere.
Effects effects_of(const Prepared& prepared);
// Once it is filled: inputs of which it has a copy are read no more, and the caller may have freed
// them, so that their memory is soon another tensor's.
Effects effects_when_filled(const Prepared& prepared);

// Whether two of these tensors have memory in common.
bool share_memory(const Tensors& tensors);

// Whether one of these calls writes memory that another one reads or writes.
bool share_memory(c10::ArrayRef<Prepared*> calls);

}  // namespace torch_ucc
