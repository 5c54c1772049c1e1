// Numbers that no other process draws.
#pragma once

#include <cstdint>
#include <random>

namespace torch_ucc {

// Returns 64 random bits of the system.
inline std::uint64_t random_number() {
  std::random_device random;
  return (static_cast<std::uint64_t>(random()) << 32U) | random();
}

}  // namespace torch_ucc
