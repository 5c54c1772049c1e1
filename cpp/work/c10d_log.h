// Reports to the logger that a program registered with c10d (C10dLogger::registerLogger), if it
// did.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "progress/op.h"

namespace torch_ucc {

// Reports that an operation failed. `group` is the number of its group in the flight recorder. The
// fields have the names that torch's own backends use. Does nothing if there is no logger. Any
// thread.
void log_failure(std::uint32_t group, const Op& op, const Status& status);

}  // namespace torch_ucc
