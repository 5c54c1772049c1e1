// What the kernel reports about a process of this host.
#pragma once

namespace torch_ucc {

// Returns the state letter of /proc: 'R' running, 'T' stopped, 'Z' ended but its parent has not yet
// waited for it, and so on. 'X' if there is no such process, '?' if the letter cannot be read.
char process_state(long pid);

}  // namespace torch_ucc
