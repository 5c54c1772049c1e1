// What a process may have run out of when a library only says that it failed.
#pragma once

#include <cstddef>
#include <string>

namespace torch_ucc {

// A sentence for each that is nearly or quite used up: file descriptors, room in /dev/shm; empty if there is enough of all.
std::string scarcity();

// Whether there are the descriptors that the libraries take to start, of which UCX ends the process when it lacks some.
bool has_descriptors_to_start();

// The same as scarcity() of given figures. `limit` and `size` 0: not known.
std::string scarcity_of(std::size_t descriptors, std::size_t limit, std::size_t shared_memory_free, std::size_t size);

}  // namespace torch_ucc
