// Finds out of which devices UCX and UCC can use the memory directly, without a copy on the host.
// Used only if the user's settings ask for it.
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

// Returns UCX's memory type for each wanted device type, or the reason why there is none. `wanted`
// maps a device type to UCX's name of its memory.
MemoryTypes<MessageMemory>::Entries direct_messages(const NamedValues& wanted, const UcxWorker& worker);

// What agree_on_native_collectives() works with.
struct Libraries {
  Engine& engine;
  UccContext& ucc;
  const UcxWorker& worker;
  std::shared_ptr<UccTeam> everybody;
  int rank;  // in that team
};

// Returns UCC's memory type for each wanted device type, or the reason why there is none. `wanted`
// maps a device type to the name that UCX and UCC have for its memory. `device` was the current
// device when UCC started. All members of a group must run a collective in the same way, so this
// blocks until all members have said what they can do. Throws StatusError.
MemoryTypes<ucc_memory_type_t>::Entries agree_on_native_collectives(const NamedValues& wanted, std::optional<c10::Device> device,
                                                                    const Libraries& libraries, Deadline deadline);

}  // namespace torch_ucc
