#include "ops/prepared.h"

#include <algorithm>
#include <string>

#include "ops/tensor_span.h"

namespace torch_ucc {

std::string Payload::describe() const {
  if (dtype == at::ScalarType::Undefined) {
    return "";
  }
  return dtype_name(dtype) + "[" + std::to_string(elements) + "]" + (reduce_op == nullptr ? "" : std::string(" ") + reduce_op);
}

Payload payload_of(const at::Tensor& tensor, const char* reduce_op) { return {tensor.scalar_type(), tensor.numel(), reduce_op}; }

// What malloc has kept it gives again without page faults, which would take most of the time of a large operation.
std::size_t share_of(std::size_t part, int ranks, std::size_t scratch, const Settings& settings) {
  constexpr std::size_t kMuch = 16 << 20;       // does not stay in the cache; from 32 MiB on malloc never keeps it
  constexpr std::size_t kLeast = 256 << 10;     // less takes longer than page faults do
  constexpr std::size_t kMostAtOnce = 8 << 20;  // of all ranks
  const auto parts = static_cast<std::size_t>(ranks);
  const std::size_t share = std::max(settings.segment_bytes / parts, kLeast);
  return scratch >= kMuch && part > share && share * parts <= kMostAtOnce ? share : 0;
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
    refuse_type(call,
                "the output is " + shape_text(output) + " and the input " + shape_text(input) + ": they must have one dtype");
  }
}

Tensors& one_per_rank(const Call& call, TensorLists& lists, const char* what) {
  if (lists.size() != 1) {
    refuse_value(call, std::string(what) + " must be one list of tensors, not " + std::to_string(lists.size()));
  }
  if (lists.front().size() != static_cast<std::size_t>(call.group->size)) {
    refuse_value(call, std::string(what) + " list must hold one tensor a rank, " + std::to_string(call.group->size) + ", not " +
                           std::to_string(lists.front().size()));
  }
  return lists.front();
}

}  // namespace torch_ucc
