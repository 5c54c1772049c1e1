// Finds the devices in whose own memory UCX and UCC can work. Only asked for if the user wants that.
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

// For messages, by device type. `wanted` has the name that UCX has for the memory of each type.
MemoryTypes<ucs_memory_type_t>::Entries direct_messages(const NamedValues& wanted, const UcxWorker& worker);

// What agree_on_native_collectives() works with.
struct Libraries {
  Engine& engine;
  UccContext& ucc;
  const UcxWorker& worker;
  std::shared_ptr<UccTeam> everybody;
  int rank;  // in it
};

// For collectives, by device type. `wanted` has the name that UCX and UCC have for the memory of each
// type; `device` was the current device when UCC started. All members of a group must run a
// collective in the same way, so this blocks until all of them have said what they can do. Throws
// StatusError.
MemoryTypes<ucc_memory_type_t>::Entries agree_on_native_collectives(const NamedValues& wanted, std::optional<c10::Device> device,
                                                                    const Libraries& libraries, Deadline deadline);

}  // namespace torch_ucc
