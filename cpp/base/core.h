// The core that a thread runs on.
#pragma once

namespace torch_ucc {

// That of the calling thread; negative if the kernel does not say.
int current_core();

// Moves the calling thread there, once: where it may run stays as it is. False if it may not run there.
bool move_to_core(int core);

}  // namespace torch_ucc
