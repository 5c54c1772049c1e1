// CPU tensors in memory that other processes of the host can map.
#pragma once

#include <atomic>
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
  // Whether a peer was given the address. A peer may keep the memory mapped, and write to it, after
  // the tensor is freed; so the memory is not used again.
  mutable std::atomic<bool> was_shown{false};
};

// The memory of freed tensors that is kept for tensors of the same size. Each segment has a file
// descriptor.
inline constexpr std::size_t kKeptSegments = 32;
inline constexpr std::size_t kKeptBytes = std::size_t{256} << 20U;

// Makes a contiguous tensor of `size` elements, which are not initialised. Throws StatusError: the
// device is not the CPU, or the size is wrong. Throws std::bad_alloc. Any thread, but not in a
// forked child.
at::Tensor allocate(std::int64_t size, const at::TensorOptions& options);

// Returns the memory that holds the data of a tensor, which may be a view of one that allocate()
// made; null for any other tensor.
std::shared_ptr<const Segment> segment_of(const at::Tensor& tensor);

}  // namespace torch_ucc::shared_tensors
