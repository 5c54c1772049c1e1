#include "ops/prepared.h"

#include <algorithm>
#include <utility>

#include "ops/ordered_keys.h"
#include "ops/reduce_rule.h"
#include "ops/tensor_span.h"
#include "ucc/coll_args.h"

namespace torch_ucc {
namespace {

using RedOp = c10d::ReduceOp::RedOpType;

Payload payload_of(const at::Tensor& tensor, const char* reduce_op = nullptr) {
  return {tensor.scalar_type(), tensor.numel(), reduce_op};
}

// The sum of `size` ranks becomes their average. Integers are truncated towards zero.
template <typename T>
void divide_by(const at::Tensor& sum, int size) {
  T* const data = static_cast<T*>(data_of(sum));
  std::transform(data, data + sum.numel(), data,
                 [divisor = static_cast<T>(size)](T value) { return static_cast<T>(value / divisor); });
}

void divide(const at::Tensor& sum, int size) {
  switch (sum.scalar_type()) {
    case at::kLong:
      return divide_by<std::int64_t>(sum, size);
    case at::kUInt64:
      return divide_by<std::uint64_t>(sum, size);
    case at::kFloat:
      return divide_by<float>(sum, size);
    case at::kDouble:
      return divide_by<double>(sum, size);
    case at::kComplexFloat:
      return divide_by<c10::complex<float>>(sum, size);
    case at::kComplexDouble:
      return divide_by<c10::complex<double>>(sum, size);
    default:
      TORCH_INTERNAL_ASSERT(false, "no rule averages in ", sum.scalar_type());
  }
}

void to_keys(const at::Tensor& values, bool nan_is_lowest) {
  const auto count = static_cast<std::size_t>(values.numel());
  if (values.scalar_type() == at::kDouble) {
    to_ordered_keys<std::int64_t>(static_cast<double*>(data_of(values)), count, nan_is_lowest);
  } else {
    to_ordered_keys<std::int32_t>(static_cast<float*>(data_of(values)), count, nan_is_lowest);
  }
}

void from_keys(const at::Tensor& keys) {
  const auto count = static_cast<std::size_t>(keys.numel());
  if (keys.scalar_type() == at::kDouble) {
    from_ordered_keys<std::int64_t>(static_cast<double*>(data_of(keys)), count);
  } else {
    from_ordered_keys<std::int32_t>(static_cast<float*>(data_of(keys)), count);
  }
}

at::Tensor premultiplied(const Call& call, const at::Tensor& tensor, const c10d::ReduceOp& op, at::ScalarType compute) {
  const auto* factor = dynamic_cast<const PreMulSumSupplement*>(op.supplement_.get());
  if (factor == nullptr) {
    refuse_value(call, "PREMUL_SUM without its factor");
  }
  at::Tensor staged = plain(tensor.to(compute, /*non_blocking=*/false, /*copy=*/true));
  staged.mul_(factor->tensor_factor.defined() ? factor->tensor_factor.item() : at::Scalar(factor->double_factor));
  return staged;
}

// A contiguous tensor of the type that is reduced: the tensor itself where that is possible.
at::Tensor staged_for_reduction(const Call& call, const at::Tensor& tensor, const c10d::ReduceOp& op, const ReduceRule& rule) {
  const c10::InferenceMode below_autograd(true);
  if (rule.scale) {
    return premultiplied(call, tensor, op, rule.compute);
  }
  return plain(tensor.to(rule.compute, /*non_blocking=*/false, /*copy=*/rule.order));
}

}  // namespace

std::string Payload::describe() const {
  if (dtype == at::ScalarType::Undefined) {
    return "";
  }
  return dtype_name(dtype) + "[" + std::to_string(elements) + "]" + (reduce_op == nullptr ? "" : std::string(" ") + reduce_op);
}

Prepared prepare_allreduce(const Call& call, std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op,
                           const Settings& settings) {
  at::Tensor& tensor = only_tensor(call, tensors, "tensors");
  check_sendable(call, tensor, "the tensor");
  check_writable(call, tensor, "the tensor");
  const auto rule = reduce_rule(tensor.scalar_type(), op);
  if (!rule) {
    refuse_unsupported(call, std::string("the reduce op ") + reduce_op_name(op) + " has no meaning for " + shape_text(tensor) +
                                 ": convert the tensor or choose another op");
  }
  Prepared prepared;
  prepared.payload = payload_of(tensor, reduce_op_name(op));
  prepared.outputs = {tensor};
  prepared.sends = tensor.numel() != 0;
  if (!prepared.sends) {
    return prepared;
  }
  const bool in_place = rule->compute == tensor.scalar_type() && !rule->scale && !rule->order && is_plain(tensor);
  const at::Tensor buffer = in_place ? tensor : staged_for_reduction(call, tensor, op, *rule);
  if (rule->order) {
    to_keys(buffer, rule->op == UCC_OP_MIN);
  }
  const auto count = static_cast<std::size_t>(buffer.numel());
  prepared.args = allreduce_in_place_args(data_of(buffer), count, rule->datatype, rule->op, memory_of(buffer));
  prepared.pieces.element_size = static_cast<std::size_t>(buffer.element_size());
  if (bytes_of(buffer) > settings.segment_bytes) {
    prepared.pieces.count = std::max<std::size_t>(1, settings.segment_bytes / prepared.pieces.element_size);
    prepared.pieces.window = settings.segment_window;
  }
  prepared.buffers = {buffer, tensor};
  if (rule->divide || rule->order || !in_place) {
    prepared.store = [buffer, tensor, in_place, order = rule->order, divisor = rule->divide ? call.group->size : 1] {
      if (divisor != 1) {
        divide(buffer, divisor);
      }
      if (order) {
        from_keys(buffer);
      }
      if (!in_place) {
        copy_into(tensor, buffer);
      }
    };
  }
  return prepared;
}

Prepared prepare_broadcast(const Call& call, std::vector<at::Tensor>& tensors, std::int64_t root, std::int64_t root_tensor) {
  at::Tensor& tensor = only_tensor(call, tensors, "tensors");
  check_sendable(call, tensor, "the tensor");
  if (root < 0 || root >= call.group->size) {
    refuse_value(call, "root " + std::to_string(root) + " is not a rank of the group");
  }
  if (root_tensor != 0) {
    refuse_value(call, "root tensor " + std::to_string(root_tensor) + ": the list holds one tensor, number 0");
  }
  const bool is_root = call.group->rank == root;
  if (!is_root) {
    check_writable(call, tensor, "the tensor");
  }
  Prepared prepared;
  prepared.payload = payload_of(tensor);
  prepared.outputs = {tensor};
  prepared.sends = tensor.numel() != 0 && call.group->size > 1;
  if (!prepared.sends) {
    return prepared;
  }
  const c10::InferenceMode below_autograd(true);
  const at::Tensor buffer = is_plain(tensor) ? tensor : is_root ? plain(tensor) : at::empty(tensor.sizes(), tensor.options());
  prepared.args = broadcast_args(data_of(buffer), bytes_of(buffer), static_cast<int>(root), memory_of(buffer));
  prepared.buffers = {buffer, tensor};
  if (!is_root && !is_plain(tensor)) {
    prepared.store = [buffer, tensor] { copy_into(tensor, buffer); };
  }
  return prepared;
}

namespace {

// `all` is contiguous, holds the ranks' parts one after the other, and may be where `mine` lies already.
void gather_into(Prepared& prepared, const Call& call, const at::Tensor& all, const at::Tensor& mine) {
  const std::size_t bytes = bytes_of(mine);
  char* const begin = static_cast<char*>(data_of(all));
  char* const slot = begin + bytes * static_cast<std::size_t>(call.group->rank);
  const c10::InferenceMode below_autograd(true);
  at::Tensor source = plain(mine);
  const char* const from = static_cast<const char*>(source_of(source));
  const bool in_place = from == slot;
  if (!in_place && from < begin + bytes_of(all) && begin < from + bytes) {
    source = source.clone();  // part of the output, at another rank's place
  }
  prepared.args = allgather_args(in_place ? nullptr : source_of(source), begin, bytes, call.group->size, memory_of(all));
  prepared.buffers = {all, source};
}

void check_same_type(const Call& call, const at::Tensor& output, const at::Tensor& input) {
  if (output.scalar_type() != input.scalar_type()) {
    refuse_type(call,
                "the output is " + shape_text(output) + " and the input " + shape_text(input) + ": they must have one dtype");
  }
}

}  // namespace

Prepared prepare_allgather_into(const Call& call, at::Tensor& output, at::Tensor& input) {
  check_sendable(call, input, "the input");
  check_sendable(call, output, "the output");
  check_writable(call, output, "the output");
  check_same_type(call, output, input);
  if (output.numel() != input.numel() * call.group->size) {
    refuse_value(call, "the output " + shape_text(output) + " must hold " + std::to_string(call.group->size) +
                           " times as many elements as the input " + shape_text(input));
  }
  Prepared prepared;
  prepared.payload = payload_of(input);
  prepared.inputs = {input};
  prepared.outputs = {output};
  prepared.sends = input.numel() != 0;
  if (!prepared.sends) {
    return prepared;
  }
  const c10::InferenceMode below_autograd(true);
  const at::Tensor all = is_plain(output) ? output : at::empty(output.sizes(), output.options());
  gather_into(prepared, call, all, input);
  if (!is_plain(output)) {
    prepared.buffers.push_back(output);
    prepared.store = [all, output] { copy_into(output, all); };
  }
  return prepared;
}

Prepared prepare_allgather(const Call& call, std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs) {
  at::Tensor& input = only_tensor(call, inputs, "the inputs");
  check_sendable(call, input, "the input");
  if (outputs.size() != 1) {
    refuse_value(call, "the outputs must be one list of tensors, not " + std::to_string(outputs.size()));
  }
  std::vector<at::Tensor>& parts = outputs.front();
  if (parts.size() != static_cast<std::size_t>(call.group->size)) {
    refuse_value(call, "the output list must hold one tensor a rank, " + std::to_string(call.group->size) + ", not " +
                           std::to_string(parts.size()));
  }
  for (const at::Tensor& part : parts) {
    check_sendable(call, part, "an output");
    check_writable(call, part, "an output");
    check_same_type(call, part, input);
    if (part.numel() != input.numel()) {
      refuse_value(call, "an output is " + shape_text(part) + " and the input " + shape_text(input) +
                             ": tensors of different sizes cannot be gathered by this op");
    }
  }
  Prepared prepared;
  prepared.payload = payload_of(input);
  prepared.inputs = {input};
  prepared.outputs = parts;
  prepared.sends = input.numel() != 0;
  if (!prepared.sends) {
    return prepared;
  }
  const c10::InferenceMode below_autograd(true);
  const at::Tensor all = at::empty({call.group->size, input.numel()}, input.options());
  gather_into(prepared, call, all, input);
  prepared.buffers.insert(prepared.buffers.end(), parts.begin(), parts.end());
  prepared.store = [all, parts] {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      copy_into(parts[rank], all[static_cast<std::int64_t>(rank)].view(parts[rank].sizes()));
    }
  };
  return prepared;
}

Prepared prepare_barrier() {
  Prepared prepared;
  prepared.args = barrier_args();
  return prepared;
}

}  // namespace torch_ucc
