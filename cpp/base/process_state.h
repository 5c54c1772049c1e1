// What the kernel says of a process of this host.
#pragma once

namespace torch_ucc {

// As in /proc: 'R' running, 'T' stopped, 'Z' ended and not yet asked about by its parent, and so
// on; 'X' if there is none.
char process_state(long pid);

}  // namespace torch_ucc
