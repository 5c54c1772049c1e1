// Reduces the elements of several buffers into one buffer: one function for each pair of a data
// type and a reduce op, in the best instruction set that the processor has.
//
// All instruction sets and all architectures return the same bits. Every NaN that results from an
// operation is the same NaN. Elements do not depend on each other: a caller may cut buffers into
// pieces of any size, and the result does not change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace torch_ucc::shm {

// The types have PyTorch's names. PyTorch's bool is missing: a caller reduces it as uint8, with max
// instead of "or", min instead of "and", and bit_xor instead of "xor".
enum class DataType : std::uint8_t {
  uint8,
  int8,
  uint16,
  int16,
  uint32,
  int32,
  uint64,
  int64,
  float16,
  bfloat16,
  float32,
  float64,
  float8_e4m3fn,             // overflow gives NaN, as in PyTorch 2.11
  float8_e4m3fn_saturating,  // overflow gives the largest finite number, as in PyTorch 2.13
  float8_e4m3fnuz,
  float8_e5m2,
  float8_e5m2fnuz,
  float8_e8m0fnu,
  complex_half,
  complex_float,
  complex_double,
};
inline constexpr std::size_t kDataTypes = 21;

enum class ReduceOp : std::uint8_t { sum, product, min, max, bit_and, bit_or, bit_xor, average };
inline constexpr std::size_t kReduceOps = 8;

// The bytes of one element.
std::size_t size_of(DataType type);

// Sets dst[i] to the reduction of sources[0][i], sources[1][i], ... in this order, for each i below
// `count`. Reads each source once and writes dst once.
//
// `number_of_sources` is at least 1 and below 2^20. With one source the elements are copied. `dst`
// may be exactly one of the sources, but overlaps none in any other way. Sources may be equal. No
// pointer needs to be aligned.
using Reduce = void (*)(void* dst, const void* const* sources, std::size_t number_of_sources, std::size_t count);

// Returns the function for the pair, or null if the pair has no meaning:
//
//   integers       all ops. sum and product wrap; average is the exact sum in 64 bits, divided by
//                  the number of sources and truncated towards zero
//   real floats    no bitwise ops. min and max are NaN if any source is NaN, and -0 < +0.
//                  float16, bfloat16 and float8 are computed in float32 and rounded once
//   complex        sum, product, average. average multiplies by the inverse of the number of
//                  sources, like PyTorch's division. complex_half is computed in complex_float
Reduce reduce_kernel(DataType type, ReduceOp op);

// What the functions are compiled for. `baseline` is what the whole build is compiled for.
enum class InstructionSet : std::uint8_t { baseline, avx2, avx512 };

// The instruction sets that this build and this processor have, the best one last.
std::span<const InstructionSet> instruction_sets();

// Returns the function for one of `instruction_sets()`. Tests compare them with each other.
Reduce reduce_kernel(DataType type, ReduceOp op, InstructionSet set);

}  // namespace torch_ucc::shm
