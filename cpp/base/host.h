// Which host this is.
#pragma once

#include <string>

namespace torch_ucc {

// Returns the name of this host; empty if the kernel does not report it.
std::string host_name();

// Returns the kernel's boot id, which is the same in all processes of a machine until it restarts.
// Processes with the same id share clocks and memory. Empty if the kernel does not report it.
std::string boot_id();

}  // namespace torch_ucc
