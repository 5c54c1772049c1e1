// Memory of devices that UCC may compute in.
#pragma once

#include <ucc/api/ucc.h>

#include <optional>
#include <string>

#include "progress/loop_token.h"
#include "ucc/team.h"

namespace torch_ucc {

// UCC's type of the memory with this name ("cuda", "rocm", "host"); nothing for another name.
std::optional<ucc_memory_type_t> memory_type(const std::string& name);

// Whether this UCC can copy and reduce in such memory. A UCC that was built without support fails,
// or takes an address in that memory for one of the host. `alone` is a team of this process only:
// the function prepares a collective on it and does not start it, so no memory is touched and
// nothing is sent. The device with that memory must be the current device of this thread, and in
// use.
bool computes_in(LoopToken& token, const UccTeam& alone, ucc_memory_type_t memory);

}  // namespace torch_ucc
