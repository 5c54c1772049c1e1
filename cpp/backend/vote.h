// Agreement of all members of a context by one small all_reduce of UCC.
#pragma once

#include <cstdint>
#include <memory>

#include "base/deadline.h"
#include "progress/engine.h"
#include "ucc/team.h"

namespace torch_ucc {

// Returns the least of the numbers that the members of `everybody` give. Blocks until all have called
// this. `what` is named in errors. Throws StatusError.
std::int32_t least_of_all(Engine& engine, const std::shared_ptr<UccTeam>& everybody, std::int32_t mine, const char* what,
                          Deadline deadline);

}  // namespace torch_ucc
