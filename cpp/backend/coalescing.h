// What a thread has called since startCoalescing(), to be sent at endCoalescing().
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
  std::shared_ptr<OpBatch> batch;  // null once a call of it was refused: nothing of it is sent
  Status refusal;                  // then
  Effects effects{};               // of all calls so far
  bool is_collective = false;      // one of them is
  Tensors inputs;                  // held, so that `effects` are not those of memory that was freed and is now another tensor's
  Tensors outputs;
  std::vector<std::shared_ptr<const Fence>> fences;

  // Ends the batch with that reason: the Works of its calls raise it. Nothing of it was sent.
  void drop(const std::string& why);
};

// Those that the calling thread has open, one a group. They belong to the thread: no other one sees
// them, and they end with it.
namespace coalescings {

// Null if there is none.
Coalescing* find(std::uint32_t group);
// Drops one that is open already: an exception kept it from its end.
void open(std::uint32_t group, Coalescing coalescing);
// Takes it out; nothing if there is none.
std::optional<Coalescing> close(std::uint32_t group);

}  // namespace coalescings

}  // namespace torch_ucc
