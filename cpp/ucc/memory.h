// Memory other than the host's that UCC may compute in.
#pragma once

#include <ucc/api/ucc.h>

#include <optional>
#include <string>

#include "progress/loop_token.h"
#include "ucc/team.h"

namespace torch_ucc {

// What UCC calls memory of this name ("cuda", "rocm", "host"); nothing where it has none of that
// name.
std::optional<ucc_memory_type_t> memory_type(const std::string& name);

// Whether UCC has what copies and reduces in such memory. One that was built without would fail, or
// take an address there for the host's. `alone` is a team of this process only: a collective is
// prepared on it and not begun, so that no memory is touched and nothing is sent. The device with
// that memory must be the current one of this thread, and in use.
bool computes_in(LoopToken& token, const UccTeam& alone, ucc_memory_type_t memory);

}  // namespace torch_ucc
