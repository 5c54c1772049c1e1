// What the kernel knows of the TCP connections of this user: round trips, rates, and so on.
#pragma once

#include <string>

namespace torch_ucc {

// Returns the answers of the kernel to a sock_diag(7) request with INET_DIAG_INFO, one after the
// other, for each established connection of this user to another address: at most 512, which is
// about 200 KB. `python/torch_ucc/status/network.py` decodes them. Empty if the kernel gives no
// answer. Does not wait for another process.
std::string tcp_facts();

}  // namespace torch_ucc
