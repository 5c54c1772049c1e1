// Reductions: each is computed by UCC in a type that it really reduces (see reduce_rule.h), from
// the caller's memory where that is possible and through a copy where it is not.
#include <algorithm>
#include <numeric>
#include <utility>

#include "ops/ordered_keys.h"
#include "ops/prepared.h"
#include "ops/reduce_rule.h"
#include "ops/tensor_span.h"
#include "ucc/coll_args.h"

namespace torch_ucc {
namespace {

// The sum of `size` ranks becomes their average. Integers are truncated towards zero.
template <typename T>
void divide_by(const at::Tensor& sum, int size) {
  T* const data = static_cast<T*>(data_of(sum));
  std::transform(data, data + sum.numel(), data,
                 [divisor = static_cast<T>(size)](T value) { return static_cast<T>(value / divisor); });
}

void divide(const at::Tensor& sum, int size) {
  if (!sum.is_cpu()) {
    const c10::InferenceMode below_autograd(true);
    // A divisor on the host would make torch multiply by its inverse.
    const at::Tensor divisor = at::full({}, size, sum.options());
    if (c10::isIntegralType(sum.scalar_type(), /*includeBool=*/false)) {
      sum.div_(divisor, "trunc");
    } else {
      sum.div_(divisor);
    }
    return;
  }
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

at::Scalar factor_of(const Call& call, const c10d::ReduceOp& op) {
  const auto* factor = dynamic_cast<const PreMulSumSupplement*>(op.supplement_.get());
  if (factor == nullptr) {
    refuse_value(call, "PREMUL_SUM has no factor: make it with torch.distributed._make_nccl_premul_sum()");
  }
  return factor->tensor_factor.defined() ? factor->tensor_factor.item() : at::Scalar(factor->double_factor);
}

using Kind = shm::Movement::Kind;

ReduceRule rule_for(const Call& call, const at::Tensor& tensor, const c10d::ReduceOp& op, Path path, Kind kind) {
  const auto rule = reduce_rule(tensor.scalar_type(), op);
  if (!rule) {
    refuse_unsupported(call, std::string("the reduce op ") + reduce_op_name(op) + " is not defined for " + shape_text(tensor) +
                                 ": convert the tensor or choose another op");
  }
  switch (path) {
    case Path::memory:
      return rule->natively(tensor.scalar_type());
    case Path::levels:
      return hosts::is_reduced_by_ucc(kind, call.group->layout->hosts())
                 ? *rule
                 : rule->in_levels(tensor.scalar_type(), call.group->layout->is_even());
    default:
      return *rule;
  }
}

void move_reduced(Prepared& prepared, Path path, const ReduceRule& rule, Kind kind, std::int64_t root, shm::Parts sources,
                  shm::Parts destinations) {
  prepared.move(path, kind, root, std::move(sources), std::move(destinations));
  prepared.movement.type = rule.memory_type;
  prepared.movement.op = rule.memory_op;
  prepared.ucc = {rule.datatype, rule.op};
}

// Whether the tensor's own memory is what UCC reduces.
bool is_reducible(const at::Tensor& tensor, const ReduceRule& rule) {
  return rule.compute == tensor.scalar_type() && !rule.scale && !rule.order && is_plain(tensor);
}

// Turns values of the computed type into what UCC reduces, in place.
struct Encoder {
  ReduceRule rule;
  at::Scalar factor;

  Encoder(const Call& call, const c10d::ReduceOp& op, const ReduceRule& rule)
      : rule(rule), factor(rule.scale ? factor_of(call, op) : at::Scalar()) {}

  void operator()(const at::Tensor& values) const {
    if (rule.scale) {
      values.mul_(factor);
    }
    if (rule.order) {
      to_keys(values, rule.op == UCC_OP_MIN);
    }
  }
};

// Turns what UCC has reduced into values again, in place.
void decode(const at::Tensor& values, const ReduceRule& rule, int divisor) {
  if (rule.divide) {
    divide(values, divisor);
  }
  if (rule.order) {
    from_keys(values);
  }
}

// What is to be reduced: the caller's own memory where that is possible, else a buffer that is
// loaded from it.
struct Staged {
  at::Tensor values;
  bool is_buffer;
};

Staged staged(Prepared& prepared, const Call& call, const at::Tensor& tensor, const c10d::ReduceOp& op, const ReduceRule& rule) {
  if (is_reducible(tensor, rule)) {
    return {tensor, false};
  }
  const c10::InferenceMode below_autograd(true);
  at::Tensor values = at::empty(tensor.sizes(), tensor.options().dtype(rule.compute));
  prepared.loads.emplace_back([tensor, values, encode = Encoder(call, op, rule)] {
    const c10::InferenceMode below_autograd(true);
    copy_into(values, tensor);
    encode(values);
  });
  return {values, true};
}

// What is to be reduced of several tensors, one after the other: the caller's own memory if the
// tensors lie like that, else a buffer that is loaded from them.
Staged staged_together(Prepared& prepared, const Call& call, const Tensors& tensors, const c10d::ReduceOp& op,
                       const ReduceRule& rule) {
  const c10::InferenceMode below_autograd(true);
  std::int64_t total = 0;
  bool adjacent = true;
  const char* end = nullptr;
  for (const at::Tensor& tensor : tensors) {
    total += tensor.numel();
    const auto* begin = tensor.numel() == 0 ? end : static_cast<const char*>(source_of(tensor));
    adjacent = adjacent && is_reducible(tensor, rule) && (end == nullptr || begin == end) &&
               tensor.storage().is_alias_of(tensors.front().storage());
    end = begin == nullptr ? nullptr : begin + bytes_of(tensor);
  }
  if (adjacent && tensors.front().numel() != 0) {
    return {tensors.front().as_strided({total}, {1}), false};
  }
  at::Tensor values = at::empty({total}, tensors.front().options().dtype(rule.compute));
  prepared.loads.emplace_back([tensors, values, encode = Encoder(call, op, rule)] {
    const c10::InferenceMode below_autograd(true);
    std::int64_t at = 0;
    for (const at::Tensor& tensor : tensors) {
      copy_to_part(values, at, tensor);
      at += tensor.numel();
    }
    encode(values);
  });
  return {values, true};
}

// In device memory an operation is not cut, because each piece would cost several kernel launches.
Pieces pieces_of(const at::Tensor& buffer, const Call& call, const Settings& settings) {
  Pieces pieces;
  pieces.total = static_cast<std::size_t>(buffer.numel());
  pieces.element_size = static_cast<std::size_t>(buffer.element_size());
  if (!call.device_memory && bytes_of(buffer) > settings.segment_bytes) {
    pieces.count = std::max<std::size_t>(1, settings.segment_bytes / pieces.element_size);
    pieces.window = settings.segment_window;
  }
  return pieces;
}

// Returns a function that brings what was reduced in `buffer` to `tensor`, which may be the same;
// null if there is nothing to do.
std::function<void()> stored(const at::Tensor& tensor, const at::Tensor& buffer, const ReduceRule& rule, int divisor) {
  const bool in_place = buffer.is_same(tensor);
  if (in_place && !rule.divide) {
    return nullptr;
  }
  return [tensor, buffer, rule, divisor, in_place] {
    decode(buffer, rule, divisor);
    if (!in_place) {
      copy_into(tensor, buffer);
    }
  };
}

bool is_apart(const at::Tensor& output, const Tensors& sources) {
  return std::none_of(sources.begin(), sources.end(), [&](const at::Tensor& source) { return shares_memory(output, source); });
}

// Whether `output` shares no memory with the parts, or is the part that this rank gives to itself and
// shares no memory with the others. Parts may overlap each other, because they are only read.
bool is_apart(const at::Tensor& output, const shm::Parts& parts, int own) {
  const auto* const begin = static_cast<const char*>(source_of(output));
  const auto* const end = begin + bytes_of(output);
  for (std::size_t rank = 0; rank < parts.all().size(); ++rank) {
    const Part& part = parts.of(rank);
    const auto* const data = static_cast<const char*>(part.data);
    const bool is_own = rank == static_cast<std::size_t>(own) && data == begin;
    if (!is_own && begin < data + part.bytes && data < end) {
      return false;
    }
  }
  return true;
}

// Where the reduced part is received: the output itself if it has the right type and is apart from
// what is sent, else a new buffer.
at::Tensor landing_of(const at::Tensor& output, bool is_apart, const ReduceRule& rule) {
  const c10::InferenceMode below_autograd(true);
  return is_apart && is_reducible(output, rule) ? output : at::empty({output.numel()}, output.options().dtype(rule.compute));
}

bool are_even(const std::vector<std::uint64_t>& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](std::uint64_t count) { return count == counts.front(); });
}

// Lets UCC work directly in buffers of the operation and in device memory, and in bounce buffers
// instead of the caller's memory on the host.
void share_out(Prepared& prepared, const Call& call, const Tensors& sources, const Tensors& destinations,
               bool are_sources_buffers, bool are_destinations_buffers) {
  for (const auto& [tensors, are_buffers] :
       {std::pair(&sources, are_sources_buffers), std::pair(&destinations, are_destinations_buffers)}) {
    if (are_buffers || call.device_memory) {
      for (const at::Tensor& tensor : *tensors) {
        Held::keep(prepared.buffers, tensor);
      }
    }
  }
  if (!call.device_memory) {
    prepared.shield(are_sources_buffers ? Tensors() : sources, are_destinations_buffers ? Tensors() : destinations);
  }
}

// `all` holds the ranks' parts one after the other, `counts` elements each; this rank's result goes
// to `output`.
void scatter_reduced(Prepared& prepared, const Call& call, const at::Tensor& output, const Staged& staged,
                     std::vector<std::uint64_t> counts, const ReduceRule& rule) {
  const at::Tensor& all = staged.values;
  const at::Tensor mine = landing_of(output, is_apart(output, {all}), rule);
  const auto total = static_cast<std::size_t>(all.numel());
  const bool even = are_even(counts);
  prepared.path = Path::collective;
  prepared.counts = std::move(counts);
  prepared.args = even ? reduce_scatter_args(source_of(all), data_of(mine), prepared.counts.front(), call.group->size,
                                             rule.datatype, rule.op, call.memory())
                       : reduce_scatterv_args(source_of(all), total, data_of(mine), prepared.counts.data(), rule.datatype,
                                              rule.op, call.memory());
  prepared.pieces.total = total;
  prepared.pieces.element_size = static_cast<std::size_t>(all.element_size());
  share_out(prepared, call, {all}, {mine}, staged.is_buffer, !mine.is_same(output));
  prepared.store = stored(output, mine, rule, call.group->size);
}

// Reduces `parts`, which lie in the `held` tensors, through shared memory or in levels. The result of
// this rank goes to `output`.
void scatter_reduced_by_memory(Prepared& prepared, const Call& call, Path path, const at::Tensor& output, const Tensors& held,
                               bool are_buffers, shm::Parts parts, const ReduceRule& rule) {
  const at::Tensor mine = landing_of(output, is_apart(output, parts, call.group->rank), rule);
  for (const at::Tensor& tensor : held) {
    prepared.keep_memory(tensor, are_buffers);
  }
  prepared.keep_memory(mine, !mine.is_same(output));
  move_reduced(prepared, path, rule, Kind::reduce_scatter, -1, std::move(parts), whole(mine));
  prepared.store = stored(output, mine, rule, call.group->size);
}

// The parts of `counts` elements each that lie one after the other in `all`.
shm::Parts parts_of(const at::Tensor& all, const std::vector<std::uint64_t>& counts) {
  std::vector<Part> parts;
  Part next = part_of(all);
  for (const std::uint64_t count : counts) {
    next.bytes = count * static_cast<std::size_t>(all.element_size());
    parts.push_back(next);
    next.data = static_cast<char*>(next.data) + next.bytes;
  }
  return shm::Parts(std::move(parts));
}

// Reduces parts of one size, which may lie anywhere, in pieces that have `share` bytes of each
// part. The result of this rank goes to `output`.
void scatter_reduced_in_pieces(Prepared& prepared, const Call& call, const at::Tensor& output, const Tensors& parts,
                               std::size_t share, const ReduceRule& rule) {
  const at::Tensor mine = landing_of(output, is_apart(output, parts), rule);
  const auto count = static_cast<std::size_t>(mine.numel());
  prepared.path = Path::collective;
  prepared.args = reduce_scatter_args(source_of(parts.front()), data_of(mine), count, call.group->size, rule.datatype, rule.op,
                                      call.memory());
  prepared.pieces.total = count;
  prepared.pieces.element_size = static_cast<std::size_t>(mine.element_size());
  prepared.pieces.count = share / prepared.pieces.element_size;
  // Also for the operation's buffers: the shares of a piece must lie one after the other
  prepared.shield(parts, {mine});
  prepared.store = stored(output, mine, rule, call.group->size);
}

std::size_t share_to_scatter(const at::Tensor& output, const Call& call, const ReduceRule& rule, const Settings& settings) {
  const std::size_t part = static_cast<std::size_t>(output.numel()) * c10::elementSize(rule.compute);
  return call.device_memory ? 0 : share_of(part, call.group->size, settings);
}

// Lets UCC reduce in place, in a bounce buffer or in a buffer of the operation. `is_written`: this
// rank gets the result.
void reduce_in_place(Prepared& prepared, const Call& call, const at::Tensor& tensor, const Staged& staged, bool is_written) {
  if (staged.is_buffer || call.device_memory) {
    Held::keep(prepared.buffers, staged.values);
  } else {
    prepared.pieces.in_place = is_written;
    prepared.shield({tensor}, is_written ? Tensors{tensor} : Tensors());
  }
}

}  // namespace

bool reduces_on_devices(at::TensorList tensors, const c10d::ReduceOp& op) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    const auto rule = tensor.defined() ? reduce_rule(tensor.scalar_type(), op) : std::nullopt;
    return !rule || rule->works_on_devices();  // without a rule the call is refused
  });
}

Prepared prepare_allreduce(const Call& call, Tensors& tensors, const c10d::ReduceOp& op, const Settings& settings) {
  at::Tensor& tensor = only_tensor(call, tensors, "tensors");
  check_sendable(call, tensor, "the tensor");
  check_writable(call, tensor, "the tensor");
  const Path path = path_of(call, bytes_of(tensor), settings);
  const ReduceRule rule = rule_for(call, tensor, op, path, Kind::all_reduce);
  Prepared prepared;
  prepared.payload = payload_of(tensor, reduce_op_name(op));
  prepared.outputs.push_back(tensor);
  prepared.reads_outputs = true;
  if (tensor.numel() == 0) {
    return prepared;
  }
  const Staged buffer = staged(prepared, call, tensor, op, rule);
  prepared.store = stored(tensor, buffer.values, rule, call.group->size);
  if (path != Path::collective) {
    prepared.keep_memory(buffer.values, buffer.is_buffer);
    move_reduced(prepared, path, rule, Kind::all_reduce, -1, whole(buffer.values), whole(buffer.values));
    return prepared;
  }
  prepared.path = Path::collective;
  prepared.pieces = pieces_of(buffer.values, call, settings);
  prepared.args = allreduce_in_place_args(data_of(buffer.values), prepared.pieces.total, rule.datatype, rule.op, call.memory());
  reduce_in_place(prepared, call, tensor, buffer, true);
  return prepared;
}

Prepared prepare_reduce(const Call& call, Tensors& tensors, const c10d::ReduceOp& op, std::int64_t root, std::int64_t root_tensor,
                        const Settings& settings) {
  at::Tensor& tensor = only_tensor(call, tensors, "tensors");
  check_sendable(call, tensor, "the tensor");
  check_root(call, root, root_tensor);
  const bool is_root = call.group->rank == root;
  if (is_root) {
    check_writable(call, tensor, "the tensor");
  }
  const Path path = path_of(call, bytes_of(tensor), settings);
  const ReduceRule rule = rule_for(call, tensor, op, path, Kind::reduce);
  Prepared prepared;
  prepared.payload = payload_of(tensor, reduce_op_name(op));
  prepared.root = root;
  prepared.outputs.push_back(tensor);
  prepared.reads_outputs = true;
  prepared.writes_outputs = is_root;
  if (tensor.numel() == 0) {
    return prepared;
  }
  const Staged buffer = staged(prepared, call, tensor, op, rule);
  if (is_root) {
    prepared.store = stored(tensor, buffer.values, rule, call.group->size);
  }
  if (path != Path::collective) {
    prepared.keep_memory(buffer.values, buffer.is_buffer);
    move_reduced(prepared, path, rule, Kind::reduce, root, whole(buffer.values), is_root ? whole(buffer.values) : shm::Parts());
    return prepared;
  }
  prepared.path = Path::collective;
  prepared.pieces = pieces_of(buffer.values, call, settings);
  prepared.args = reduce_args(is_root ? data_of(buffer.values) : const_cast<void*>(source_of(buffer.values)),
                              prepared.pieces.total, rule.datatype, rule.op, static_cast<int>(root), is_root, call.memory());
  reduce_in_place(prepared, call, tensor, buffer, is_root);
  return prepared;
}

Prepared prepare_reduce_scatter_tensor(const Call& call, at::Tensor& output, at::Tensor& input, const c10d::ReduceOp& op,
                                       const Settings& settings) {
  check_sendable(call, input, "the input");
  check_sendable(call, output, "the output");
  check_writable(call, output, "the output");
  check_same_type(call, output, input);
  if (input.numel() != output.numel() * call.group->size) {
    refuse_value(call, "the input " + shape_text(input) + " must hold " + std::to_string(call.group->size) +
                           " times as many elements as the output " + shape_text(output));
  }
  const Path path = path_of_parts(call, bytes_of(input), settings);
  const ReduceRule rule = rule_for(call, input, op, path, Kind::reduce_scatter);
  Prepared prepared;
  prepared.payload = payload_of(input, reduce_op_name(op));
  prepared.inputs.push_back(input);
  prepared.outputs.push_back(output);
  if (input.numel() == 0) {
    return prepared;
  }
  const Staged all = staged(prepared, call, input, op, rule);
  if (path != Path::collective) {
    scatter_reduced_by_memory(prepared, call, path, output, {all.values}, all.is_buffer,
                              equal_parts(all.values, call.group->size), rule);
    return prepared;
  }
  if (const std::size_t share = share_to_scatter(output, call, rule, settings)) {
    const c10::InferenceMode below_autograd(true);
    scatter_reduced_in_pieces(prepared, call, output, all.values.view({-1}).split(output.numel()), share, rule);
    return prepared;
  }
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(call.group->size), static_cast<std::uint64_t>(output.numel()));
  scatter_reduced(prepared, call, output, all, std::move(counts), rule);
  return prepared;
}

Prepared prepare_reduce_scatter(const Call& call, Tensors& outputs, TensorLists& inputs, const c10d::ReduceOp& op,
                                const Settings& settings) {
  at::Tensor& output = only_tensor(call, outputs, "the outputs");
  check_sendable(call, output, "the output");
  check_writable(call, output, "the output");
  const Tensors& parts = one_per_rank(call, inputs, "the inputs");
  std::vector<std::uint64_t> counts;
  std::int64_t total = 0;
  for (const at::Tensor& part : parts) {
    check_sendable(call, part, "an input");
    check_same_type(call, output, part);
    counts.push_back(static_cast<std::uint64_t>(part.numel()));
    total += part.numel();
  }
  const at::Tensor& own = parts[static_cast<std::size_t>(call.group->rank)];
  if (own.numel() != output.numel()) {
    refuse_value(call, "the input for this rank is " + shape_text(own) + " and the output is " + shape_text(output) +
                           ": they must have the same size");
  }
  const bool even = are_even(counts);
  const Path path = path_of_parts(call, static_cast<std::size_t>(total * output.element_size()), settings, even);
  const ReduceRule rule = rule_for(call, output, op, path, Kind::reduce_scatter);
  Prepared prepared;
  prepared.payload = {output.scalar_type(), total, reduce_op_name(op)};
  prepared.inputs = parts;
  prepared.outputs.push_back(output);
  if (total == 0) {
    return prepared;
  }
  const bool as_they_lie =
      std::all_of(parts.begin(), parts.end(), [&](const at::Tensor& part) { return is_reducible(part, rule); });
  if (path != Path::collective && as_they_lie) {
    scatter_reduced_by_memory(prepared, call, path, output, parts, false, each_of(parts), rule);
    return prepared;
  }
  if (path != Path::collective) {
    const Staged all = staged_together(prepared, call, parts, op, rule);
    scatter_reduced_by_memory(prepared, call, path, output, {all.values}, all.is_buffer, parts_of(all.values, counts), rule);
    return prepared;
  }
  if (const std::size_t share = even ? share_to_scatter(output, call, rule, settings) : 0) {
    const c10::InferenceMode below_autograd(true);
    scatter_reduced_in_pieces(prepared, call, output,
                              as_they_lie ? parts : staged_together(prepared, call, parts, op, rule).values.split(output.numel()),
                              share, rule);
    return prepared;
  }
  scatter_reduced(prepared, call, output, staged_together(prepared, call, parts, op, rule), std::move(counts), rule);
  return prepared;
}

}  // namespace torch_ucc
