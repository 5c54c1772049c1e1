// Whether two pieces of memory have a byte in common, also where they do not lie in one piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch_ucc {

// Items of `item` bytes each, at `begin` plus any sum of multiples of the strides.
struct Region {
  struct Dim {
    std::size_t size = 0;    // at least 1
    std::size_t stride = 0;  // bytes
  };

  std::uintptr_t begin = 0;
  std::size_t item = 0;     // bytes; 0: the region is empty
  std::vector<Dim> dims{};  // none: one item
  std::uint32_t space = 0;  // regions of different address spaces have nothing in common

  // One past the last byte.
  std::uintptr_t end() const;
};

// Exact. Where the answer would take too long to find, which takes strides that no views of one
// tensor have, it is true.
bool overlap(const Region& a, const Region& b);

}  // namespace torch_ucc
