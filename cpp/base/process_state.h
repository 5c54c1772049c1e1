// What the kernel reports about a process of this host.
#pragma once

#include <string>

namespace torch_ucc {

// Returns the state letter of /proc: 'R' running, 'T' stopped, 'Z' ended but its parent has not yet
// waited for it, and so on. 'X' if there is no such process, '?' if the letter cannot be read.
char process_state(long pid);

// Returns the line /proc/PID/stat; empty if there is no such process.
std::string process_stat(long pid);

// Returns whether the process has a handler for the signal, from 1 to 64.
bool handles_signal(long pid, int signal);

}  // namespace torch_ucc
