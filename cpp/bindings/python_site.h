// Where in the program a call comes from.
#pragma once

#include <cstdint>

namespace torch_ucc {

// Of the calling thread: its Python frames, or what it is called if it has none. The number that
// the flight recorder gave the text: "file:line function", one line a frame, innermost first. Takes
// the GIL.
std::uint32_t python_site();

}  // namespace torch_ucc
