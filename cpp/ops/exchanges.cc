// Operations that move data in our own messages.
#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/prepared.h"
#include "ops/tensor_span.h"

namespace torch_ucc {
namespace {

Message send_of(int peer, const at::Tensor& source, std::size_t offset, std::size_t bytes) {
  Message message;
  message.kind = Message::Kind::send;
  message.peer = peer;
  // const_cast: one pointer serves both directions, and a send only reads.
  message.data = static_cast<char*>(const_cast<void*>(source_of(source))) + offset;
  message.bytes = bytes;
  return message;
}

Message receive_of(int peer, const at::Tensor& landing, std::size_t offset, std::size_t bytes) {
  Message message;
  message.kind = Message::Kind::receive;
  message.peer = peer;
  message.data = static_cast<char*>(data_of(landing)) + offset;
  message.bytes = bytes;
  return message;
}

// Collects what one call sends and receives, and the copies to make when that has arrived.
class Moves {
 public:
  // For a message, with the memory type of its tensor if it is in device memory.
  explicit Moves(std::optional<MessageMemory> memory = {}) : memory_(memory) {}
  // For a collective: through shared memory if the group has some, else in messages.
  Moves(const Call& call, shm::Movement::Kind kind) {
    if (call.through_memory()) {
      kind_ = kind;
      rank_ = static_cast<std::size_t>(call.group->rank);
      sources_.resize(static_cast<std::size_t>(call.group->size));
      destinations_.resize(static_cast<std::size_t>(call.group->size));
    }
  }

  void send(int peer, const at::Tensor& tensor) {
    at::Tensor source = plain_source(prepared_, tensor);
    send_part(peer, source, 0, bytes_of(source));
    keep(std::move(source));
  }

  void receive(int peer, const at::Tensor& tensor) {
    at::Tensor landing = landing_for(tensor);
    receive_part(peer, landing, 0, bytes_of(landing));
    if (!landing.is_same(tensor)) {
      copy(tensor, landing);
    }
    keep(std::move(landing));
  }

  // For a part of a tensor that the caller of this function keeps.
  void send_part(int peer, const at::Tensor& source, std::size_t offset, std::size_t bytes) {
    const Message message = send_of(peer, source, offset, bytes);
    kind_ ? add_part(sources_, message) : prepared_.messages.push_back(message);
  }
  void receive_part(int peer, const at::Tensor& landing, std::size_t offset, std::size_t bytes) {
    const Message message = receive_of(peer, landing, offset, bytes);
    kind_ ? add_part(destinations_, message) : prepared_.messages.push_back(message);
  }
  void keep(at::Tensor tensor) {
    // UCX works in device memory directly, so a tensor there is kept like a buffer.
    (memory_ ? prepared_.buffers : prepared_.callers).push_back(std::move(tensor));
  }

  // Copies once everything has arrived. Until then, `source` must not change.
  void copy(const at::Tensor& destination, const at::Tensor& source) {
    copies_.emplace_back(destination, source);
    keep(source);
  }

  void set_root(std::int64_t root) { prepared_.root = root; }
  Held& held() { return prepared_; }

  Prepared finish(Payload payload, Tensors inputs, Tensors outputs) {
    for (Message& message : prepared_.messages) {
      message.direct = memory_;
    }
    prepared_.path = prepared_.messages.empty() ? Path::nothing : Path::messages;
    if (kind_) {
      move_through_memory(*kind_);
    }
    prepared_.payload = payload;
    prepared_.inputs = std::move(inputs);
    prepared_.outputs = std::move(outputs);
    if (!copies_.empty()) {
      prepared_.store = [copies = std::move(copies_)] {
        for (const auto& [destination, source] : copies) {
          copy_into(destination, source);
        }
      };
    }
    return std::move(prepared_);
  }

 private:
  static void add_part(std::vector<Part>& side, const Message& message) {
    side[static_cast<std::size_t>(message.peer)] = {message.data, message.bytes};
  }
  void move_through_memory(shm::Movement::Kind kind) {
    using Kind = shm::Movement::Kind;
    if (kind == Kind::all_to_all) {
      prepared_.move(Path::memory, kind, -1, shm::Parts(std::move(sources_)), shm::Parts(std::move(destinations_)));
      return;
    }
    const auto root = static_cast<std::size_t>(prepared_.root);
    const bool is_root = root == rank_;
    if (kind == Kind::gather) {
      prepared_.move(Path::memory, kind, prepared_.root, is_root ? shm::Parts() : shm::Parts(sources_[root]),
                     is_root ? shm::Parts(std::move(destinations_)) : shm::Parts());
    } else {
      prepared_.move(Path::memory, kind, prepared_.root, is_root ? shm::Parts(std::move(sources_)) : shm::Parts(),
                     is_root ? shm::Parts() : shm::Parts(destinations_[root]));
    }
  }

  const std::optional<MessageMemory> memory_;  // of all messages, if it is a device's
  std::optional<shm::Movement::Kind> kind_;    // empty: in messages
  std::size_t rank_ = 0;
  std::vector<Part> sources_;  // by rank, like the destinations
  std::vector<Part> destinations_;
  Prepared prepared_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

// Checks the part that a rank sends to itself. `output` and `input` may be the same memory.
void check_own_part(const Call& call, const at::Tensor& output, const at::Tensor& input) {
  check_same_type(call, output, input);
  if (output.numel() != input.numel()) {
    refuse_value(call, "the output for this rank is " + shape_text(output) + " and its input is " + shape_text(input) +
                           ": they must have the same size");
  }
}

bool is_one_memory(const at::Tensor& a, const at::Tensor& b) {
  return is_plain(a) && is_plain(b) && source_of(a) == source_of(b) && a.numel() == b.numel();
}

// Copies each input that shares its storage with an output when the operation begins, because a
// message that arrives could overwrite data that is still to be sent.
Tensors apart_from(Held& held, const Tensors& outputs, const Tensors& inputs) {
  std::vector<const void*> written;
  written.reserve(outputs.size());
  for (const at::Tensor& output : outputs) {
    written.push_back(output.storage().data());
  }
  std::sort(written.begin(), written.end());
  Tensors apart;
  apart.reserve(inputs.size());
  for (const at::Tensor& input : inputs) {
    const bool shared = input.numel() != 0 && std::binary_search(written.begin(), written.end(), input.storage().data());
    apart.push_back(shared ? copied_source(held, input) : input);
  }
  return apart;
}

Payload payload_of_all(const Tensors& tensors) {
  Payload payload = tensors.empty() ? Payload() : payload_of(tensors.front());
  payload.elements = 0;
  for (const at::Tensor& tensor : tensors) {
    payload.elements += tensor.numel();
  }
  return payload;
}

// The bytes of each rank's rows. `splits` has the numbers of rows; if it is empty, each rank gets
// the same number.
std::vector<std::size_t> split_bytes(const Call& call, const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                                     const char* what) {
  const auto size = static_cast<std::size_t>(call.group->size);
  const std::int64_t rows = tensor.dim() == 0 ? -1 : tensor.size(0);
  if (splits.empty()) {
    if (rows < 0 || rows % call.group->size != 0) {
      refuse_value(call, std::string("the ") + what + " " + shape_text(tensor) + " cannot be divided evenly among " +
                             std::to_string(size) + " ranks along its first dimension: pass its split sizes");
    }
    return std::vector<std::size_t>(size, bytes_of(tensor) / size);
  }
  if (splits.size() != size) {
    refuse_value(call, std::string("there must be one ") + what + " split size for each of the " + std::to_string(size) +
                           " ranks, not " + std::to_string(splits.size()));
  }
  std::int64_t sum = 0;
  for (const std::int64_t split : splits) {
    if (split < 0) {
      refuse_value(call, std::string("an ") + what + " split size is negative: " + std::to_string(split));
    }
    sum += split;
  }
  if (sum != rows) {
    refuse_value(call, std::string("the ") + what + " split sizes add up to " + std::to_string(sum) + ", and the " + what + " " +
                           shape_text(tensor) + " has " + std::to_string(rows < 0 ? 0 : rows) + " rows");
  }
  const std::size_t row = rows == 0 ? 0 : bytes_of(tensor) / static_cast<std::size_t>(rows);
  std::vector<std::size_t> bytes;
  bytes.reserve(size);
  for (const std::int64_t split : splits) {
    bytes.push_back(static_cast<std::size_t>(split) * row);
  }
  return bytes;
}

std::vector<std::size_t> offsets_of(const std::vector<std::size_t>& bytes) {
  std::vector<std::size_t> offsets;
  offsets.reserve(bytes.size());
  std::size_t at = 0;
  for (const std::size_t part : bytes) {
    offsets.push_back(at);
    at += part;
  }
  return offsets;
}

void check_movable(const Call& call, const at::Tensor& tensor, std::optional<MessageMemory> memory) {
  memory ? check_dense(call, tensor, "the tensor") : check_sendable(call, tensor, "the tensor");
}

void check_message(const Call& call) {
  if (call.op != &operation::kRecvAnySource && (call.peer < 0 || call.peer >= call.group->size)) {
    refuse_value(call, "rank " + std::to_string(call.peer) + " is not a rank of the group");
  }
  if (call.tag < 0) {
    refuse_value(call, "the tag must not be negative");
  }
}

}  // namespace

Prepared prepare_send(const Call& call, Tensors& tensors, std::optional<MessageMemory> memory) {
  at::Tensor& tensor = only_tensor(call, tensors, "tensors");
  check_movable(call, tensor, memory);
  check_message(call);
  Moves moves(memory);
  moves.send(call.peer, tensor);
  Prepared prepared = moves.finish(payload_of(tensor), {}, Tensors(1, tensor));
  prepared.reads_outputs = true;
  prepared.writes_outputs = false;
  return prepared;
}

Prepared prepare_recv(const Call& call, Tensors& tensors, std::optional<MessageMemory> memory) {
  at::Tensor& tensor = only_tensor(call, tensors, "tensors");
  check_movable(call, tensor, memory);
  check_writable(call, tensor, "the tensor");
  check_message(call);
  Moves moves(memory);
  moves.receive(call.peer, tensor);
  return moves.finish(payload_of(tensor), {}, Tensors(1, tensor));
}

Prepared prepare_gather(const Call& call, TensorLists& outputs, Tensors& inputs, std::int64_t root) {
  at::Tensor& input = only_tensor(call, inputs, "the inputs");
  check_sendable(call, input, "the input");
  check_root(call, root);
  Moves moves(call, shm::Movement::Kind::gather);
  moves.set_root(root);
  if (call.group->rank != root) {
    if (!outputs.empty() && !outputs.front().empty()) {
      refuse_value(call, "only the root receives: on other ranks, the outputs must be empty");
    }
    moves.send(static_cast<int>(root), input);
    return moves.finish(payload_of(input), {input}, {});
  }
  const Tensors& parts = one_per_rank(call, outputs, "the outputs");
  for (const at::Tensor& part : parts) {
    check_sendable(call, part, "an output");
    check_writable(call, part, "an output");
    check_same_type(call, part, input);
  }
  const Landings landings(parts);
  for (int rank = 0; rank < call.group->size; ++rank) {
    const at::Tensor& part = landings.tensors[static_cast<std::size_t>(rank)];
    if (rank != call.group->rank) {
      moves.receive(rank, part);
      continue;
    }
    check_own_part(call, part, input);
    if (!is_one_memory(part, input)) {
      moves.copy(part, apart_from(moves.held(), parts, inputs).front());
    }
  }
  Prepared prepared = moves.finish(payload_of(input), {input}, parts);
  landings.bring_back(prepared, parts);
  return prepared;
}

Prepared prepare_gather_single(const Call& call, at::Tensor& output, at::Tensor& input, std::int64_t root) {
  Tensors inputs{input};
  TensorLists parts;
  if (call.group->rank != root) {
    return prepare_gather(call, parts, inputs, root);
  }
  check_sendable(call, input, "the input");
  check_sendable(call, output, "the output");
  const std::int64_t each = input.numel();
  const std::int64_t needed = each * call.group->size;
  if (output.numel() != needed) {
    refuse_value(call, "the output must hold " + std::to_string(call.group->size) + " times the " + std::to_string(each) +
                           " elements of the input, " + std::to_string(needed) + ", not " + std::to_string(output.numel()));
  }
  if (!output.is_contiguous()) {
    refuse_value(call, "the output must be contiguous, because it receives the parts of all ranks one after the other");
  }
  const at::Tensor flat = output.view({-1});
  Tensors& slices = parts.emplace_back();
  for (int rank = 0; rank < call.group->size; ++rank) {
    slices.push_back(flat.narrow(0, rank * each, each));
  }
  Prepared prepared = prepare_gather(call, parts, inputs, root);
  prepared.outputs = {output};
  return prepared;
}

Prepared prepare_scatter(const Call& call, Tensors& outputs, TensorLists& inputs, std::int64_t root) {
  at::Tensor& output = only_tensor(call, outputs, "the outputs");
  check_sendable(call, output, "the output");
  check_writable(call, output, "the output");
  check_root(call, root);
  Moves moves(call, shm::Movement::Kind::scatter);
  moves.set_root(root);
  if (call.group->rank != root) {
    if (!inputs.empty() && !inputs.front().empty()) {
      refuse_value(call, "only the root sends: on other ranks, the inputs must be empty");
    }
    moves.receive(static_cast<int>(root), output);
    return moves.finish(payload_of(output), {}, {output});
  }
  const Tensors& parts = one_per_rank(call, inputs, "the inputs");
  for (const at::Tensor& part : parts) {
    check_sendable(call, part, "an input");
    check_same_type(call, output, part);
  }
  for (int rank = 0; rank < call.group->size; ++rank) {
    const at::Tensor& part = parts[static_cast<std::size_t>(rank)];
    if (rank != call.group->rank) {
      moves.send(rank, part);
      continue;
    }
    check_own_part(call, output, part);
    if (!is_one_memory(output, part)) {
      // The output may overlap two inputs
      moves.copy(output, apart_from(moves.held(), {output}, {part}).front());
    }
  }
  return moves.finish(payload_of_all(parts), parts, {output});
}

Prepared prepare_alltoall(const Call& call, Tensors& outputs, Tensors& inputs) {
  const auto size = static_cast<std::size_t>(call.group->size);
  for (const auto& [list, what] : {std::pair(&outputs, "outputs"), std::pair(&inputs, "inputs")}) {
    if (list->size() != size) {
      refuse_value(call, std::string("the ") + what + " must hold one tensor for each of the " + std::to_string(size) +
                             " ranks, not " + std::to_string(list->size()));
    }
    for (const at::Tensor& tensor : *list) {
      check_sendable(call, tensor, what);
      check_same_type(call, outputs.front(), tensor);
    }
  }
  for (const at::Tensor& output : outputs) {
    check_writable(call, output, "an output");
  }
  const auto own = static_cast<std::size_t>(call.group->rank);
  check_own_part(call, outputs[own], inputs[own]);
  Moves moves(call, shm::Movement::Kind::all_to_all);
  const Landings landings(outputs);
  const Tensors sources = apart_from(moves.held(), outputs, inputs);
  in_steps(call, [&](int to, int from) {
    moves.receive(from, landings.tensors[static_cast<std::size_t>(from)]);
    moves.send(to, sources[static_cast<std::size_t>(to)]);
  });
  if (!is_one_memory(landings.tensors[own], inputs[own])) {
    moves.copy(landings.tensors[own], sources[own]);
  }
  Prepared prepared = moves.finish(payload_of_all(inputs), inputs, outputs);
  landings.bring_back(prepared, outputs);
  return prepared;
}

Prepared prepare_alltoall_single(const Call& call, at::Tensor& output, at::Tensor& input,
                                 const std::vector<std::int64_t>& output_splits, const std::vector<std::int64_t>& input_splits) {
  check_sendable(call, input, "the input");
  check_sendable(call, output, "the output");
  check_writable(call, output, "the output");
  check_same_type(call, output, input);
  const std::vector<std::size_t> sent = split_bytes(call, input, input_splits, "input");
  const std::vector<std::size_t> received = split_bytes(call, output, output_splits, "output");
  const auto own = static_cast<std::size_t>(call.group->rank);
  if (sent[own] != received[own]) {
    refuse_value(
        call, "this rank sends " + std::to_string(sent[own]) + " bytes to itself and expects " + std::to_string(received[own]));
  }
  const std::vector<std::size_t> sent_at = offsets_of(sent);
  const std::vector<std::size_t> received_at = offsets_of(received);
  const c10::InferenceMode below_autograd(true);
  Moves moves(call, shm::Movement::Kind::all_to_all);
  const at::Tensor source = plain_source(moves.held(), apart_from(moves.held(), {output}, {input}).front());
  const at::Tensor landing = landing_for(output);
  in_steps(call, [&](int to, int from) {
    const auto t = static_cast<std::size_t>(to);
    const auto f = static_cast<std::size_t>(from);
    moves.receive_part(from, landing, received_at[f], received[f]);
    moves.send_part(to, source, sent_at[t], sent[t]);
  });
  moves.keep(source);
  moves.keep(landing);
  Prepared prepared = moves.finish(payload_of(input), {input}, {output});
  prepared.store = [source, landing, output, to = received_at[own], from = sent_at[own], bytes = sent[own]] {
    if (bytes != 0) {
      std::memcpy(static_cast<char*>(data_of(landing)) + to, static_cast<const char*>(source_of(source)) + from, bytes);
    }
    if (!landing.is_same(output)) {
      copy_into(output, landing);
    }
  };
  return prepared;
}

}  // namespace torch_ucc
