// Where in the program a call comes from.
#pragma once

#include <cstdint>

namespace torch_ucc {

// Records the Python frames of the calling thread, or the name of the thread if it has none.
// Returns the number that the flight recorder gave to this text; 0 without an interpreter. The text
// has a line "file:line function" for each frame, innermost first. Takes the GIL.
std::uint32_t python_site();

}  // namespace torch_ucc
