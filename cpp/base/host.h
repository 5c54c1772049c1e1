// Which host this is.
#pragma once

#include <string>

namespace torch_ucc {

// Its name; empty if the kernel does not tell.
std::string host_name();

// Equal in all processes between two starts of the same machine, which share its clocks and its
// memory; empty if the kernel does not tell.
std::string boot_id();

}  // namespace torch_ucc
