// What the logger hears that a program registered with c10d (C10dLogger::registerLogger), if it
// did.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "progress/op.h"

namespace torch_ucc {

// That an operation failed, of the group with this number in the flight recorder. The names of the
// fields are those that torch's own backends use. Any thread.
void log_failure(std::uint32_t group, const Op& op, const Status& status);

}  // namespace torch_ucc
