// Conversions between float32 and the 16-bit and 8-bit float formats of PyTorch.
//
// Each format is a struct with the same members:
//
//   Bits      the unsigned integer that holds one number
//   kHasSign  whether the highest bit is the sign
//   kNan      the only NaN that the struct produces
//   is_nan    whether the bits are a NaN
//   widen     returns the float32 with the same value; this conversion is exact
//   narrow    rounds a float32 to the nearest number, and to the even one if two are equally near
//
// `widen` and `narrow` return the same bits as PyTorch's own conversions, except that PyTorch keeps
// the sign of a NaN in some formats. Here each NaN becomes `kNan`, because processors disagree on
// the sign and the payload of the NaN that an operation returns. No function has a branch, so that
// the compiler can vectorise loops that call them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace torch_ucc::shm {

inline constexpr std::uint32_t kFloatSign = 0x80000000;
inline constexpr std::uint32_t kFloatInfinity = 0x7f800000;
inline constexpr std::uint32_t kFloatNan = 0x7fc00000;

// Which bit patterns of a small float are not finite numbers.
enum class Specials : std::uint8_t {
  // The highest exponent stands for infinity and NaN, as in IEEE 754.
  infinity_and_nan,
  // "fn": if all bits but the sign are set, the number is a NaN. Overflow gives a NaN.
  nan_only,
  // "fn", but overflow gives the largest finite number, also if the float32 is an infinity.
  // PyTorch 2.13 converts like this, PyTorch 2.11 like `nan_only`.
  nan_only_saturating,
  // "fnuz": the pattern that would be -0 is the only NaN. Overflow gives this NaN.
  nan_for_negative_zero,
};

// Returns `yes` if a < b, and else `no`. a and b are below 2^31. Compilers turn `?:` into a branch
// if a side of it is the result of float arithmetic, and they do not vectorise loops with a branch.
constexpr std::uint32_t if_below(std::uint32_t a, std::uint32_t b, std::uint32_t yes, std::uint32_t no) {
  const auto mask = static_cast<std::uint32_t>(static_cast<std::int32_t>(a - b) >> 31);
  return (yes & mask) | (no & ~mask);
}

// A float of 8 or 16 bits. Its exponent and its mantissa have fewer bits than those of float32.
template <typename BitsType, int kMantissaBits, int kBias, Specials kSpecials>
struct SmallFloat {
  using Bits = BitsType;

 private:
  static constexpr int kWidth = std::numeric_limits<Bits>::digits;
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr bool kHasInfinity = kSpecials == Specials::infinity_and_nan;
  static constexpr bool kHasNegativeZero = kSpecials != Specials::nan_for_negative_zero;
  static constexpr std::uint32_t kMagnitude = (1U << (kWidth - 1)) - 1;
  static constexpr std::uint32_t kLowestNormal = 1U << kMantissaBits;
  static constexpr std::uint32_t kInfinity = kMagnitude + 1 - kLowestNormal;  // if the format has one
  static constexpr std::uint32_t kLargest = kHasInfinity ? kInfinity - 1 : kHasNegativeZero ? kMagnitude - 1 : kMagnitude;
  // The first magnitude that is neither finite nor to be clamped.
  static constexpr std::uint32_t kClamp = kSpecials == Specials::nan_only_saturating ? kLargest : kLargest + 1;
  // The difference between the exponents of float32 and of this format.
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23U;
  static constexpr std::uint32_t kLowestNormalFloat = kRebias + (1U << 23U);
  // The float32 in which the last bit of the mantissa stands for the lowest subnormal number.
  static constexpr std::uint32_t kAligner = static_cast<std::uint32_t>(127 + 24 - kBias - kMantissaBits) << 23U;

 public:
  static constexpr bool kHasSign = true;
  static constexpr Bits kNan = kSpecials == Specials::nan_for_negative_zero ? kMagnitude + 1
                               : kWidth == 16                               ? kInfinity + kLowestNormal / 2
                                                                            : kMagnitude;

  static constexpr bool is_nan(Bits bits) {
    if constexpr (kHasNegativeZero) {
      return (bits & kMagnitude) > (kHasInfinity ? kInfinity : kLargest);
    } else {
      return bits == kNan;
    }
  }

  static constexpr float widen(Bits bits) {
    const std::uint32_t magnitude = bits & kMagnitude;
    const std::uint32_t sign = (bits ^ magnitude) << (32U - kWidth);
    const std::uint32_t normal = (magnitude << kShift) + kRebias;
    const float subnormal = std::bit_cast<float>(normal + (1U << 23U)) - std::bit_cast<float>(kLowestNormalFloat);
    std::uint32_t value = if_below(magnitude, kLowestNormal, std::bit_cast<std::uint32_t>(subnormal), normal);
    if constexpr (kHasNegativeZero) {
      value |= magnitude > kLargest ? kFloatInfinity : 0;
    } else {
      value = bits == kNan ? kFloatNan : value;
    }
    return std::bit_cast<float>(sign | value);
  }

  static constexpr Bits narrow(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & ~kFloatSign;
    const std::uint32_t sign = (bits ^ magnitude) >> (32U - kWidth);
    const std::uint32_t clamped = std::min(magnitude, (kClamp << kShift) + kRebias);
    const std::uint32_t odd = (clamped >> kShift) & 1U;
    const std::uint32_t normal = (clamped - kRebias + (1U << (kShift - 1)) - 1 + odd) >> kShift;
    const float aligned = std::bit_cast<float>(clamped) + std::bit_cast<float>(kAligner);
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(aligned) - kAligner;
    std::uint32_t result = if_below(clamped, kLowestNormalFloat, subnormal, normal);
    if constexpr (kSpecials == Specials::nan_only) {
      result = result == kNan ? kNan : result | sign;  // overflow does not keep the sign either
    } else if constexpr (kHasNegativeZero) {
      result = if_below(kFloatInfinity, magnitude, kNan, result | sign);
    } else {
      result = result == 0 ? 0 : result | sign;
    }
    return static_cast<Bits>(result);
  }
};

using Float16 = SmallFloat<std::uint16_t, 10, 15, Specials::infinity_and_nan>;
using Float8E4m3fn = SmallFloat<std::uint8_t, 3, 7, Specials::nan_only>;
using Float8E4m3fnSaturating = SmallFloat<std::uint8_t, 3, 7, Specials::nan_only_saturating>;
using Float8E4m3fnuz = SmallFloat<std::uint8_t, 3, 8, Specials::nan_for_negative_zero>;
using Float8E5m2 = SmallFloat<std::uint8_t, 2, 15, Specials::infinity_and_nan>;
using Float8E5m2fnuz = SmallFloat<std::uint8_t, 2, 16, Specials::nan_for_negative_zero>;

// The upper half of a float32.
struct BFloat16 {
  using Bits = std::uint16_t;
  static constexpr bool kHasSign = true;
  static constexpr Bits kNan = kFloatNan >> 16U;

  static constexpr bool is_nan(Bits bits) { return (bits & 0x7fffU) > (kFloatInfinity >> 16U); }

  static constexpr float widen(Bits bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U); }

  static constexpr Bits narrow(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = bits + 0x7fff + ((bits >> 16U) & 1U);
    return static_cast<Bits>((value == value ? rounded : kFloatNan) >> 16U);
  }
};

// A power of two: the exponent of a float32, without sign and mantissa. Its number 0 is 2^-127.
struct Float8E8m0fnu {
  using Bits = std::uint8_t;
  static constexpr bool kHasSign = false;
  static constexpr Bits kNan = 0xff;

  static constexpr bool is_nan(Bits bits) { return bits == kNan; }

  static constexpr float widen(Bits bits) {
    const std::uint32_t exponent = static_cast<std::uint32_t>(bits) << 23U;
    const std::uint32_t value = exponent == 0 ? 1U << 22U : exponent;
    return std::bit_cast<float>(bits == kNan ? kFloatNan : value);
  }

  // Ignores the sign. Of two numbers that are equally near, PyTorch takes the higher one. PyTorch
  // also takes the higher one for everything between its two lowest numbers, 2^-127 and 2^-126.
  static constexpr Bits narrow(float value) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & ~kFloatSign;
    const std::uint32_t half = 1U << 22U;
    const std::uint32_t tie = magnitude == half ? 1U : 0U;
    const std::uint32_t rounded = (magnitude + half - tie) >> 23U;
    return static_cast<Bits>(magnitude >= kFloatInfinity ? kNan : rounded);
  }
};

}  // namespace torch_ucc::shm
