// The cores that a thread may run on, and the core that it runs on.
#pragma once

#include <string>

namespace torch_ucc {

// Returns the core that the calling thread runs on, or a negative number if the kernel does not
// report it.
int current_core();

// Moves the calling thread to `core` and then restores the set of cores that it may run on, so the
// kernel may move it again. Returns false if the thread may not run on `core`. If another thread
// computes on `core`, the call returns only when the kernel schedules this thread there.
bool move_to_core(int core);

// Returns the cores that the calling thread may run on, as text to compare: two threads of one host
// may run on the same cores if their texts are equal. Empty if the kernel does not report them.
std::string allowed_cores();

}  // namespace torch_ucc
