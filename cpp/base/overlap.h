// Whether two regions of memory, which need not be contiguous, have a byte in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torch_ucc {

// Items of `item` bytes each. Their addresses are `begin` plus, for each dimension, 0 to `size` - 1
// times its stride.
struct Region {
  struct Dim {
    std::size_t size = 0;    // at least 1
    std::size_t stride = 0;  // bytes
  };

  std::uintptr_t begin = 0;
  std::size_t item = 0;     // bytes; 0: the region is empty
  std::vector<Dim> dims{};  // empty: one item
  std::uint32_t space = 0;  // regions of different address spaces have nothing in common

  // One past the last byte.
  std::uintptr_t end() const;
};

// Exact, except that it returns true if the search takes too many steps. Views of one tensor have
// no strides for which that happens.
bool overlap(const Region& a, const Region& b);

}  // namespace torch_ucc
