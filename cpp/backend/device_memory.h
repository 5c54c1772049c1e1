// In the memory of which devices UCX and UCC work themselves, where that is wanted.
#pragma once

#include <memory>
#include <optional>

#include "base/deadline.h"
#include "base/settings.h"
#include "device/direct.h"
#include "progress/engine.h"
#include "ucc/context.h"
#include "ucc/team.h"
#include "ucx/worker.h"

namespace torch_ucc {

// By device type, as `wanted` names UCX's memory.
MemoryTypes<ucs_memory_type_t>::Entries direct_messages(const NamedValues& wanted, const UcxWorker& worker);

// What is asked of it.
struct Libraries {
  Engine& engine;
  UccContext& ucc;
  const UcxWorker& worker;
  std::shared_ptr<UccTeam> everybody;
  int rank;  // in it
};

// By device type, as `wanted` names UCX's and UCC's memory: how the members of a group go about a
// collective must be the same on all of them. `device`: the current one, of which UCC was told as
// it started. Blocks until all members said what they can; throws StatusError.
MemoryTypes<ucc_memory_type_t>::Entries agree_on_native_collectives(const NamedValues& wanted, std::optional<c10::Device> device,
                                                                    const Libraries& libraries, Deadline deadline);

}  // namespace torch_ucc
