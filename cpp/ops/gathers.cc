// Collectives in which UCC only moves data, as bytes: broadcast, all_gather, and the barrier.
#include <algorithm>
#include <utility>

#include "ops/prepared.h"
#include "ops/tensor_span.h"
#include "ucc/coll_args.h"

namespace torch_ucc {

Prepared prepare_broadcast(const Call& call, Tensors& tensors, std::int64_t root, std::int64_t root_tensor,
                           const Settings& settings) {
  at::Tensor& tensor = only_tensor(call, tensors, "tensors");
  check_sendable(call, tensor, "the tensor");
  check_root(call, root, root_tensor);
  const bool is_root = call.group->rank == root;
  if (!is_root) {
    check_writable(call, tensor, "the tensor");
  }
  Prepared prepared;
  prepared.payload = payload_of(tensor);
  prepared.root = root;
  prepared.outputs.push_back(tensor);
  prepared.reads_outputs = is_root;
  prepared.writes_outputs = !is_root;
  if (tensor.numel() == 0 || call.group->size == 1) {
    return prepared;
  }
  const at::Tensor buffer = is_root ? plain_source(prepared, tensor) : landing_for(tensor);
  if (!is_root && !buffer.is_same(tensor)) {
    prepared.store = [buffer, tensor] { copy_into(tensor, buffer); };
  }
  if (const Path path = path_of(call, bytes_of(buffer), settings); path != Path::collective) {
    prepared.keep_memory(buffer, !buffer.is_same(tensor));
    prepared.move(path, shm::Movement::Kind::broadcast, root, is_root ? whole(buffer) : shm::Parts(),
                  is_root ? shm::Parts() : whole(buffer));
    return prepared;
  }
  prepared.path = Path::collective;
  prepared.args = broadcast_args(is_root ? const_cast<void*>(source_of(buffer)) : data_of(buffer), bytes_of(buffer),
                                 static_cast<int>(root), call.memory());
  prepared.pieces.total = bytes_of(buffer);
  if (call.device_memory) {
    Held::keep(prepared.buffers, buffer);
    return prepared;
  }
  if (bytes_of(buffer) > settings.segment_bytes) {
    prepared.pieces.count = settings.segment_bytes;
    prepared.pieces.window = settings.segment_window;
  }
  prepared.pieces.in_place = true;
  is_root ? prepared.shield({buffer}, {}) : prepared.shield({}, {buffer});
  return prepared;
}

namespace {

// `all` is contiguous and holds the ranks' parts one after the other. It is a buffer of the
// operation if `is_buffer`, else it is the caller's. In device memory, `mine` may already lie in
// its place in `all`.
void gather_into(Prepared& prepared, const Call& call, const at::Tensor& all, bool is_buffer, const at::Tensor& mine) {
  const std::size_t bytes = bytes_of(mine);
  char* const begin = static_cast<char*>(data_of(all));
  char* const slot = begin + bytes * static_cast<std::size_t>(call.group->rank);
  at::Tensor source = plain_source(prepared, mine);
  const bool in_place = call.device_memory && source_of(source) == slot;
  if (call.device_memory && !in_place && shares_memory(source, all)) {
    source = copied_source(prepared, source);  // part of the output, at another rank's place
  }
  prepared.path = Path::collective;
  prepared.args = allgather_args(in_place ? nullptr : source_of(source), begin, bytes, call.group->size, call.memory());
  prepared.pieces.total = bytes_of(all);
  if (is_buffer || call.device_memory) {
    Held::keep(prepared.buffers, all);
  }
  if (call.device_memory) {
    Held::keep(prepared.buffers, std::move(source));
  } else {
    prepared.shield({source}, is_buffer ? Tensors() : Tensors{all});
  }
}

// Whether `source` lies where its rank's part of `all` is received, or apart from it. Otherwise a
// part that arrives could overwrite what is still to be sent.
bool lies_well(const at::Tensor& source, const at::Tensor& all, const void* own_part) {
  return source_of(source) == own_part || !shares_memory(source, all);
}

// Gathers parts through shared memory or in levels, into the plain tensor `all`.
void gather_by_memory(Prepared& prepared, const Call& call, Path path, const at::Tensor& all, bool is_buffer,
                      const at::Tensor& mine) {
  at::Tensor source = plain_source(prepared, mine);
  shm::Parts parts = equal_parts(all, call.group->size);
  if (!lies_well(source, all, parts.of(static_cast<std::size_t>(call.group->rank)).data)) {
    source = copied_source(prepared, source);
  }
  prepared.keep_memory(source, !source.is_same(mine));
  prepared.keep_memory(all, is_buffer);
  prepared.move(path, shm::Movement::Kind::all_gather, -1, whole(source), std::move(parts));
}

// Gathers parts that differ in size, into the buffer `all`.
void gather_uneven_into(Prepared& prepared, const Call& call, const at::Tensor& all, const at::Tensor& mine,
                        const Tensors& parts) {
  std::uint64_t at = 0;
  for (const at::Tensor& part : parts) {
    prepared.counts.push_back(bytes_of(part));
    prepared.displacements.push_back(at);
    at += bytes_of(part);
  }
  const at::Tensor source = plain_source(prepared, mine);
  prepared.path = Path::collective;
  prepared.args = allgatherv_args(source_of(source), bytes_of(source), data_of(all), prepared.counts.data(),
                                  prepared.displacements.data(), call.memory());
  prepared.pieces.total = at;
  Held::keep(prepared.buffers, all);
  if (call.device_memory) {
    Held::keep(prepared.buffers, source);
  } else {
    prepared.shield({source}, {});
  }
}

// Gathers parts, which may lie anywhere: through shared memory, in levels, or in pieces that have `share`
// bytes of each part. Only through shared memory may parts differ in size.
void gather_in_pieces(Prepared& prepared, const Call& call, Path path, const Tensors& parts, const at::Tensor& mine,
                      std::size_t share) {
  const auto own = static_cast<std::size_t>(call.group->rank);
  Tensors landings;
  for (const at::Tensor& part : parts) {
    landings.push_back(landing_for(part));
  }
  at::Tensor source = plain_source(prepared, mine);
  for (std::size_t rank = 0; rank < landings.size(); ++rank) {
    const bool in_place = rank == own && source_of(source) == source_of(landings[rank]);
    if (!in_place && shares_memory(source, landings[rank])) {
      // A piece that arrives would change what is still to be sent
      source = copied_source(prepared, source);
    }
  }
  if (path != Path::collective) {
    prepared.keep_memory(source, false);
    for (const at::Tensor& landing : landings) {
      prepared.keep_memory(landing, false);
    }
    prepared.move(path, shm::Movement::Kind::all_gather, -1, whole(source), each_of(landings));
  } else {
    prepared.path = Path::collective;
    prepared.args =
        allgather_args(source_of(source), data_of(landings.front()), bytes_of(source), call.group->size, call.memory());
    prepared.pieces.total = bytes_of(source);
    prepared.pieces.count = share;
    prepared.shield({source}, landings);
  }
  const auto landed = [](const at::Tensor& part, const at::Tensor& landing) { return landing.is_same(part); };
  if (std::equal(parts.begin(), parts.end(), landings.begin(), landed)) {
    return;
  }
  prepared.store = [parts, landings, landed] {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      if (!landed(parts[rank], landings[rank])) {
        copy_into(parts[rank], landings[rank]);
      }
    }
  };
}

}  // namespace

Prepared prepare_allgather_into(const Call& call, at::Tensor& output, at::Tensor& input, const Settings& settings) {
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
  prepared.inputs.push_back(input);
  prepared.outputs.push_back(output);
  if (input.numel() == 0) {
    return prepared;
  }
  const c10::InferenceMode below_autograd(true);
  const at::Tensor all = landing_for(output);
  const bool is_buffer = !all.is_same(output);
  const Path path = path_of_parts(call, bytes_of(output), settings);
  if (path != Path::collective) {
    gather_by_memory(prepared, call, path, all, is_buffer, input);
  } else if (const std::size_t share = call.device_memory ? 0 : share_of(bytes_of(input), call.group->size, settings)) {
    gather_in_pieces(prepared, call, path, all.view({-1}).split(input.numel()), input, share);
  } else {
    gather_into(prepared, call, all, is_buffer, input);
  }
  if (is_buffer) {
    prepared.store = [all, output] { copy_into(output, all); };
  }
  return prepared;
}

Prepared prepare_allgather(const Call& call, TensorLists& outputs, Tensors& inputs, const Settings& settings) {
  at::Tensor& input = only_tensor(call, inputs, "the inputs");
  check_sendable(call, input, "the input");
  const Tensors& parts = one_per_rank(call, outputs, "the outputs");
  std::int64_t total = 0;
  bool even = true;
  for (const at::Tensor& part : parts) {
    check_sendable(call, part, "an output");
    check_writable(call, part, "an output");
    check_same_type(call, part, input);
    even = even && part.numel() == parts.front().numel();
    total += part.numel();
  }
  const at::Tensor& own = parts[static_cast<std::size_t>(call.group->rank)];
  if (own.numel() != input.numel()) {
    refuse_value(call, "the output for this rank is " + shape_text(own) + " and the input is " + shape_text(input) +
                           ": they must have the same size");
  }
  Prepared prepared;
  prepared.payload = {input.scalar_type(), total};
  prepared.inputs.push_back(input);
  prepared.outputs = parts;
  if (total == 0) {
    return prepared;
  }
  const c10::InferenceMode below_autograd(true);
  const Landings landings(parts);
  const std::size_t share = even && !call.device_memory ? share_of(bytes_of(own), call.group->size, settings) : 0;
  const Path path = path_of_parts(call, static_cast<std::size_t>(total * input.element_size()), settings, even);
  if (path != Path::collective || share != 0) {
    gather_in_pieces(prepared, call, path, landings.tensors, input, share);
    // Pieces may reach the outputs without a copy by torch, so autograd must be notified.
    std::for_each(parts.begin(), parts.end(), note_written);
    landings.bring_back(prepared, parts);
    return prepared;
  }
  const at::Tensor all = at::empty({total}, input.options());
  if (even) {
    gather_into(prepared, call, all, true, input);
  } else {
    gather_uneven_into(prepared, call, all, input, parts);
  }
  prepared.store = [all, parts] {
    std::int64_t at = 0;
    for (const at::Tensor& part : parts) {
      copy_from_part(part, all, at);
      at += part.numel();
    }
  };
  return prepared;
}

Prepared prepare_barrier(const Call& call, const Settings& settings) {
  Prepared prepared;
  if (const Path path = path_of(call, 1, settings); path != Path::collective) {
    prepared.move(path, shm::Movement::Kind::barrier, -1, {}, {});
    return prepared;
  }
  prepared.path = Path::collective;
  prepared.args = barrier_args();
  return prepared;
}

}  // namespace torch_ucc
