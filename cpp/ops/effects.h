// What a prepared call does with the memory of its tensors.
#pragma once

#include "compat/torch_compat.h"
#include "ops/prepared.h"
#include "progress/effect_order.h"

namespace torch_ucc {

// The memory of a strided tensor. Empty for a tensor of another layout, and for one without
// elements.
Region region_of(const at::Tensor& tensor);

// The memory that the call reads and writes. Called while `prepared` still has its inputs and
// outputs.
Effects effects_of(const Prepared& prepared);
// The memory that the call still reads and writes after Held::fill(). An input that was copied is
// not read any more. The caller may have freed it, and another tensor may use its memory.
Effects effects_when_filled(const Prepared& prepared);

// Whether two of these tensors have memory in common.
bool share_memory(const Tensors& tensors);

// Whether one of these calls writes memory that another one reads or writes.
bool share_memory(c10::ArrayRef<Prepared*> calls);

}  // namespace torch_ucc
