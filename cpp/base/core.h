// The cores that a thread may run on, and the one it runs on.
#pragma once

#include <string>

namespace torch_ucc {

// That of the calling thread; negative if the kernel does not say.
int current_core();

// Moves the calling thread there, once; where it may run is what it was, of the cores that are
// online. False if it may not run there. On a core that somebody computes on, this lasts until the
// kernel lets the thread in.
bool move_to_core(int core);

// Equal for threads of one host that may run on the same cores; not to be read by people. Empty if
// the kernel does not say.
std::string allowed_cores();

}  // namespace torch_ucc
