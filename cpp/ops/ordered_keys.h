// Floats as integers of the same size and order, so that MIN and MAX mean the same on every path:
// NaN wins, and -0 < +0. UCC compares floats with `<`, where the outcome with a NaN depends on
// which rank's value comes first.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

namespace torch_ucc {

// Replaces each element by its key, in place. A NaN gets the key that MIN (`nan_is_lowest`) or MAX
// keeps.
template <typename Integer, typename Float>
void to_ordered_keys(Float* data, std::size_t count, bool nan_is_lowest) {
  static_assert(sizeof(Integer) == sizeof(Float));
  constexpr Integer kLowest = std::numeric_limits<Integer>::min();
  constexpr Integer kHighest = std::numeric_limits<Integer>::max();
  std::transform(data, data + count, data, [=](Float value) {
    const auto bits = std::bit_cast<Integer>(value);
    const Integer key = bits < 0 ? bits ^ kHighest : bits;
    return std::bit_cast<Float>(std::isnan(value) ? (nan_is_lowest ? kLowest : kHighest) : key);
  });
}

// Replaces each key by its element, in place. Both keys of NaN become NaN.
template <typename Integer, typename Float>
void from_ordered_keys(Float* data, std::size_t count) {
  std::transform(data, data + count, data, [](Float value) {
    const auto key = std::bit_cast<Integer>(value);
    return std::bit_cast<Float>(key < 0 ? key ^ std::numeric_limits<Integer>::max() : key);
  });
}

}  // namespace torch_ucc
