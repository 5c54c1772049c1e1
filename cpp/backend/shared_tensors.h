// CPU tensors in memory that other processes of the host can map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/shared_memory.h"
#include "compat/torch_compat.h"

namespace torch_ucc::shared_tensors {

// The tensor's data begin here, behind the key of the memory, aligned as torch aligns its own.
inline constexpr std::size_t kOffset = 64;

// The memory of a tensor that allocate() made.
struct Segment {
  explicit Segment(std::size_t size) : bytes(size), memory("torch_ucc tensor", size) {}
  const std::size_t bytes;
  const SharedMemory memory;
};

// Makes a contiguous tensor of `size` elements, which are not initialised. What is freed is kept for
// the next tensor of its size, up to kKept bytes. Throws StatusError (unsupported) for a device that
// is not the CPU. Any thread.
inline constexpr std::size_t kKept = std::size_t{256} << 20U;
at::Tensor allocate(std::int64_t size, const at::TensorOptions& options);

// Returns the memory that holds the data of a tensor, which may be a view of one that allocate()
// made; null for any other tensor.
std::shared_ptr<const Segment> segment_of(const at::Tensor& tensor);

}  // namespace torch_ucc::shared_tensors
