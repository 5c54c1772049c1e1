// A range of memory of the caller.
#pragma once

#include <cstddef>

namespace torch_ucc {

// Everything that this rank sends to, or receives from, one other rank or all ranks together.
struct Part {
  void* data = nullptr;
  std::size_t bytes = 0;
};

}  // namespace torch_ucc
