// The calls that a thread has made since startCoalescing(). They are sent at endCoalescing().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "compat/torch_compat.h"
#include "ops/prepared.h"
#include "progress/effect_order.h"
#include "progress/op_batch.h"
#include "work/fence.h"

namespace torch_ucc {

struct Coalescing {
  std::shared_ptr<OpBatch> batch;  // null once one of the calls was refused: nothing is sent then
  Status refusal;                  // the reason, once a call was refused
  Effects effects{};               // of all calls so far
  bool is_collective = false;      // whether one of the calls is a collective
  std::uint64_t counted = 0;       // how many sequence numbers its collectives took from the group
  // Held, so that the memory in `effects` is not freed and then used by another tensor.
  Tensors inputs;
  Tensors outputs;
  std::vector<std::shared_ptr<const Fence>> fences;

  // Ends the batch with an error that names `why`. The Works of its calls raise this error. Nothing
  // of the batch was sent.
  void drop(const std::string& why);
};

// The coalescings that the calling thread has open, one for each group at most. No other thread
// sees them, and they end with the thread.
namespace coalescings {

// Null if there is none.
Coalescing* find(std::uint32_t group);
// Opens a coalescing. Drops one that is still open because an exception kept it from its end.
void open(std::uint32_t group, Coalescing coalescing);
// Removes the coalescing of the group and returns it; nothing if there is none.
std::optional<Coalescing> close(std::uint32_t group);

}  // namespace coalescings

}  // namespace torch_ucc
