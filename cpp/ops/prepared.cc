#include "ops/prepared.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "ops/effects.h"
#include "ops/tensor_span.h"

namespace torch_ucc {

std::string Payload::describe() const {
  if (dtype == at::ScalarType::Undefined) {
    return "";
  }
  return dtype_name(dtype) + "[" + std::to_string(elements) + "]" + (reduce_op == nullptr ? "" : std::string(" ") + reduce_op);
}

Payload payload_of(const at::Tensor& tensor, const char* reduce_op) { return {tensor.scalar_type(), tensor.numel(), reduce_op}; }

// const_cast: sources are only read
Part part_of(const at::Tensor& tensor) { return {const_cast<void*>(source_of(tensor)), bytes_of(tensor)}; }

shm::Parts whole(const at::Tensor& tensor) { return shm::Parts(part_of(tensor)); }

shm::Parts equal_parts(const at::Tensor& tensor, int ranks) {
  const Part all = part_of(tensor);
  const std::size_t bytes = all.bytes / static_cast<std::size_t>(ranks);
  std::vector<Part> parts(static_cast<std::size_t>(ranks));
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    parts[rank] = {static_cast<char*>(all.data) + rank * bytes, bytes};
  }
  return shm::Parts(std::move(parts));
}

shm::Parts each_of(const Tensors& tensors) {
  std::vector<Part> parts;
  parts.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    parts.push_back(part_of(tensor));
  }
  return shm::Parts(std::move(parts));
}

Path path_of(const Call& call, std::size_t bytes, const Settings& settings) {
  if (call.through_memory()) {
    return Path::memory;
  }
  const bool has_levels = call.group->layout != nullptr && !call.device_memory;
  return has_levels && bytes >= settings.levels_from ? Path::levels : Path::collective;
}

Path path_of_parts(const Call& call, std::size_t bytes, const Settings& settings, bool even) {
  const Path path = path_of(call, bytes, settings);
  return path == Path::levels && !(even && call.group->layout->is_even()) ? Path::collective : path;
}

void Prepared::move(Path by, shm::Movement::Kind kind, std::int64_t root_rank, shm::Parts sources, shm::Parts destinations) {
  path = by;
  movement.kind = kind;
  movement.root = static_cast<std::size_t>(std::max<std::int64_t>(0, root_rank));
  movement.sources = std::move(sources);
  movement.destinations = std::move(destinations);
}

void Prepared::keep_memory(const at::Tensor& tensor, bool is_buffer) { keep(is_buffer ? buffers : callers, tensor); }

void Prepared::shield(const Tensors& sources, const Tensors& destinations) {
  for (const auto& [tensors, parts] : {std::pair(&sources, &pieces.sources), std::pair(&destinations, &pieces.destinations)}) {
    for (const at::Tensor& tensor : *tensors) {
      parts->push_back(part_of(tensor));
      keep(callers, tensor);
    }
  }
  whole_sides_ = sources.size() <= 1 && destinations.size() <= 1;
}

void Prepared::isolate() {
  std::vector<std::tuple<void*, at::Tensor, std::size_t>> landed;  // destination, source, bytes
  const auto buffer_of = [this](std::size_t bytes) {
    const c10::InferenceMode below_autograd(true);
    return buffers.emplace_back(at::empty({static_cast<std::int64_t>(bytes)}, at::kByte));
  };
  const auto isolate_source = [&](void*& data, std::size_t bytes) {
    const at::Tensor copy = buffer_of(bytes);
    loads.emplace_back([copy, from = data, bytes] { std::memcpy(data_of(copy), from, bytes); });
    data = data_of(copy);
  };
  const auto isolate_destination = [&](void*& data, std::size_t bytes) {
    const at::Tensor landing = buffer_of(bytes);
    landed.emplace_back(data, landing, bytes);
    data = data_of(landing);
  };
  for (Message& message : messages) {
    message.kind == Message::Kind::send ? isolate_source(message.data, message.bytes)
                                        : isolate_destination(message.data, message.bytes);
  }
  for (Part& part : pieces.sources) {
    isolate_source(part.data, part.bytes);
  }
  for (Part& part : pieces.destinations) {
    isolate_destination(part.data, part.bytes);
  }
  for (Part& part : movement.sources.all()) {
    isolate_source(part.data, part.bytes);
  }
  for (Part& part : movement.destinations.all()) {
    isolate_destination(part.data, part.bytes);
  }
  if (!landed.empty()) {
    store = [landed = std::move(landed), rest = std::move(store)] {
      for (const auto& [data, landing, bytes] : landed) {
        std::memcpy(data, source_of(landing), bytes);
      }
      if (rest) {
        rest();
      }
    };
  }
}

void Prepared::see_through() {
  if (whole_sides_) {
    pieces.sources.clear();
    pieces.destinations.clear();
    pieces.in_place = false;
  }
}

Landings::Landings(const Tensors& outputs) : tensors(outputs), are_others(share_memory(outputs)) {
  const c10::InferenceMode below_autograd(true);
  for (std::size_t i = 0; are_others && i < outputs.size(); ++i) {
    tensors[i] = at::empty(outputs[i].sizes(), outputs[i].options());
  }
}

void Landings::bring_back(Prepared& prepared, const Tensors& outputs) const {
  prepared.outputs = outputs;
  if (are_others) {
    prepared.store = [stored = std::move(prepared.store), outputs, landings = tensors] {
      if (stored) {
        stored();
      }
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        copy_into(outputs[i], landings[i]);
      }
    };
  }
}

at::Tensor copied_source(Held& held, const at::Tensor& tensor) {
  const c10::InferenceMode below_autograd(true);
  at::Tensor copy = at::empty(tensor.sizes(), tensor.options());
  held.loads.emplace_back([tensor, copy] { copy_into(copy, tensor); });
  Held::keep(held.buffers, copy);
  return copy;
}

at::Tensor plain_source(Held& held, const at::Tensor& tensor) { return is_plain(tensor) ? tensor : copied_source(held, tensor); }

// Memory that malloc has kept causes no page faults when it is used again. Page faults would take
// most of the time of a large operation.
std::size_t share_of(std::size_t part, int ranks, const Settings& settings) {
  constexpr std::size_t kLeast = 256 << 10;      // smaller shares take longer than page faults
  constexpr std::size_t kMostAtOnce = 16 << 20;  // of all ranks
  constexpr std::size_t kAligned = 4 << 10;
  const auto parts = static_cast<std::size_t>(ranks);
  const std::size_t wanted = std::max(settings.segment_bytes / parts, std::min(kLeast, kMostAtOnce / parts));
  const std::size_t share = std::max(wanted / kAligned, std::size_t{1}) * kAligned;
  return part > share && part * parts > settings.segment_bytes ? share : 0;
}

void check_root(const Call& call, std::int64_t root, std::int64_t root_tensor) {
  if (root < 0 || root >= call.group->size) {
    refuse_value(call, "root " + std::to_string(root) + " is not a rank of the group");
  }
  if (root_tensor != 0) {
    refuse_value(call, "root tensor " + std::to_string(root_tensor) + ": the list holds one tensor, number 0");
  }
}

void check_same_type(const Call& call, const at::Tensor& output, const at::Tensor& input) {
  if (output.scalar_type() != input.scalar_type()) {
    refuse_type(call, "the output is " + shape_text(output) + " and the input is " + shape_text(input) +
                          ": they must have the same dtype");
  }
}

Tensors& one_per_rank(const Call& call, TensorLists& lists, const char* what) {
  if (lists.size() != 1) {
    refuse_value(call, std::string(what) + " must be one list of tensors, not " + std::to_string(lists.size()) + " lists");
  }
  if (lists.front().size() != static_cast<std::size_t>(call.group->size)) {
    refuse_value(call, std::string(what) + " must hold one tensor for each of the " + std::to_string(call.group->size) +
                           " ranks, not " + std::to_string(lists.front().size()));
  }
  return lists.front();
}

}  // namespace torch_ucc
