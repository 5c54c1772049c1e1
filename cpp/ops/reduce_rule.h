// Decides which (dtype, reduce op) pairs are reduced, and how.
//
// UCC notices only during progress that it cannot reduce a pair. It then reports success with
// untouched data, or never ends. So UCC gets only pairs that it really reduces. Other pairs are
// computed in a type that UCC reduces, or are refused.
#pragma once

#include <ucc/api/ucc.h>

#include <optional>
#include <string>

#include "compat/torch_compat.h"
#include "shm/kernels.h"

namespace torch_ucc {

struct ReduceRule {
  // If it is not the tensor's type, the data is copied to it
  at::ScalarType compute = at::ScalarType::Undefined;
  ucc_datatype_t datatype = UCC_DT_UINT8;
  ucc_reduction_op_t op = UCC_OP_SUM;
  bool divide = false;  // AVG: summed, then divided by the size of the group
  // MIN and MAX of floats: compared as ordered integer keys, see ordered_keys.h
  bool order = false;
  bool scale = false;  // PREMUL_SUM: multiplied by the caller's factor, then summed
  // How shared memory reduces what UCC reduces by this rule
  shm::DataType memory_type = shm::DataType::uint8;
  shm::ReduceOp memory_op = shm::ReduceOp::sum;

  // Returns the rule for shared memory. The kernels there reduce every type without a converted copy
  // of the tensor. Only PREMUL_SUM needs the copy.
  ReduceRule natively(at::ScalarType dtype) const;
  // Returns the rule for a collective in levels in which UCC does not reduce. It rounds what it has reduced
  // on each host. bfloat16 is rounded there to bfloat16: it has the range of float32, so this costs precision
  // only, and halves what the network carries. An average of averages is the average if each host has as many
  // ranks, `even`.
  ReduceRule in_levels(at::ScalarType dtype, bool even) const;

  // Whether UCC and torch's own kernels can compute this rule in device memory, too. The same on
  // all ranks.
  bool works_on_devices() const { return !order && !(divide && datatype == UCC_DT_UINT64); }
};

// The rule, or nothing when the pair means nothing or is not supported.
//
//  bool           SUM and BOR and MAX: or; PRODUCT and BAND and MIN: and; BXOR: parity. No AVG
//  integers       SUM and PRODUCT wrap; AVG: exact sum in 64 bits, then truncated towards zero
//  float32, 64    SUM, PRODUCT, MIN, MAX, AVG, PREMUL_SUM. No bitwise ops. MIN and MAX with a NaN
//                 are NaN
//  float16, bfloat16, every float8: as float32, rounded once at the end
//  complex        SUM, PRODUCT, AVG, PREMUL_SUM; no order, so no MIN and MAX
std::optional<ReduceRule> reduce_rule(at::ScalarType dtype, c10d::ReduceOp::RedOpType op);

const char* reduce_op_name(c10d::ReduceOp::RedOpType op);

}  // namespace torch_ucc
