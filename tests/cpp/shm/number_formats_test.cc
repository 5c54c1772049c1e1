#include "shm/number_formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace torch_ucc::shm {
namespace {

static_assert(Float16::widen(Float16::narrow(1.5F)) == 1.5F, "the conversions are constant expressions");

// A format in the words of its standard. `Reference` derives everything else from it.
struct Layout {
  enum class Overflow : std::uint8_t { infinity, nan, largest };

  const char* name;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  Overflow overflow = Overflow::infinity;
  bool negative_zero_is_nan = false;  // and no other pattern is a NaN
};

template <typename Format>
constexpr Layout kLayout{};
template <>
constexpr Layout kLayout<Float16>{"float16", 5, 10, 15};
template <>
constexpr Layout kLayout<BFloat16>{"bfloat16", 8, 7, 127};
template <>
constexpr Layout kLayout<Float8E4m3fn>{"float8_e4m3fn", 4, 3, 7, Layout::Overflow::nan};
template <>
constexpr Layout kLayout<Float8E4m3fnSaturating>{"float8_e4m3fn_saturating", 4, 3, 7, Layout::Overflow::largest};
template <>
constexpr Layout kLayout<Float8E4m3fnuz>{"float8_e4m3fnuz", 4, 3, 8, Layout::Overflow::nan, true};
template <>
constexpr Layout kLayout<Float8E5m2>{"float8_e5m2", 5, 2, 15};
template <>
constexpr Layout kLayout<Float8E5m2fnuz>{"float8_e5m2fnuz", 5, 2, 16, Layout::Overflow::nan, true};

// Converts slowly, in double, with a table of all numbers.
class Reference {
 public:
  explicit Reference(const Layout& layout) : layout_(layout), sign_(1U << (layout.exponent_bits + layout.mantissa_bits)) {
    for (std::uint32_t magnitude = 0; magnitude < sign_ && std::isfinite(widen(magnitude)); ++magnitude) {
      numbers_.push_back(widen(magnitude));
    }
  }

  std::uint32_t patterns() const { return 2 * sign_; }

  // The finite numbers without a sign in ascending order. The index of a number is its bit pattern.
  const std::vector<double>& numbers() const { return numbers_; }

  // The number that would follow the largest one if the exponents were unlimited.
  double first_that_overflows() const { return decode(static_cast<std::uint32_t>(numbers_.size())); }

  double widen(std::uint32_t bits) const {
    const std::uint32_t magnitude = bits % sign_;
    double value = decode(magnitude);
    if (layout_.negative_zero_is_nan) {
      value = bits == sign_ ? kNan : value;
    } else if (layout_.overflow == Layout::Overflow::infinity) {
      const std::uint32_t infinity = sign_ - (1U << layout_.mantissa_bits);
      value = magnitude > infinity ? kNan : magnitude == infinity ? kInfinity : value;
    } else {
      value = magnitude == sign_ - 1 ? kNan : value;
    }
    return bits >= sign_ ? -value : value;
  }

  // Returns a value that is no bit pattern if the result is a NaN.
  std::uint32_t narrow(double value) const {
    if (std::isnan(value)) {
      return kAnyNan;
    }
    const auto largest = static_cast<std::uint32_t>(numbers_.size() - 1);
    const double magnitude = std::fabs(value);
    const auto above = std::upper_bound(numbers_.begin(), numbers_.end(), magnitude);
    std::uint32_t result = static_cast<std::uint32_t>(above - numbers_.begin()) - 1;
    const double middle = (numbers_[result] + (result == largest ? first_that_overflows() : *above)) / 2;
    if (magnitude > middle || (magnitude == middle && result % 2 == 1)) {
      ++result;
    }
    if (result > largest && layout_.overflow == Layout::Overflow::nan) {
      return kAnyNan;
    }
    if (result > largest && layout_.overflow == Layout::Overflow::largest) {
      result = largest;
    }
    const bool keeps_sign = !(layout_.negative_zero_is_nan && result == 0);
    return std::signbit(value) && keeps_sign ? result + sign_ : result;
  }

  static constexpr std::uint32_t kAnyNan = 0xffffffff;

 private:
  static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  // Takes each pattern for a finite number.
  double decode(std::uint32_t magnitude) const {
    const auto hidden = std::int32_t{1} << layout_.mantissa_bits;
    const auto exponent = static_cast<std::int32_t>(magnitude) / hidden;
    const auto mantissa = static_cast<std::int32_t>(magnitude) % hidden;
    return exponent == 0 ? std::ldexp(mantissa, 1 - layout_.bias - layout_.mantissa_bits)
                         : std::ldexp(hidden + mantissa, exponent - layout_.bias - layout_.mantissa_bits);
  }

  Layout layout_;
  std::uint32_t sign_;
  std::vector<double> numbers_;
};

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

// Numbers that are special in float32 itself, with both signs.
std::vector<float> special_floats() {
  std::vector<float> all;
  for (const std::uint32_t magnitude : {0U, 1U, 2U, 0x400000U, 0x7fffffU,       // zero and subnormal numbers
                                        0x800000U, 0x3f800000U, 0x7f7fffffU,    // the lowest normal number, 1, the largest number
                                        0x7f800000U,                            // infinity
                                        0x7f800001U, 0x7f801000U, 0x7fbfffffU,  // signaling NaNs
                                        0x7fc00000U, 0x7fc12345U, 0x7fffffffU}) {  // quiet NaNs
    all.push_back(std::bit_cast<float>(magnitude));
    all.push_back(std::bit_cast<float>(magnitude | 0x80000000U));
  }
  return all;
}

// Calls `check` with the float and its two neighbours, with both signs.
template <typename Check>
void around(double value, Check check) {
  const auto middle = static_cast<float>(value);
  ASSERT_EQ(middle, value) << "the test expects a number that float32 has";
  for (const float each : {std::nextafter(middle, -kInfinity), middle, std::nextafter(middle, kInfinity)}) {
    check(each);
    check(-each);
  }
}

// Half of the patterns are any float, half have an exponent between those of two magnitudes.
std::vector<float> random_floats(std::size_t number, double lowest, double largest) {
  std::mt19937 random(20240517);
  const std::uint32_t from = bits_of(static_cast<float>(lowest));
  const std::uint32_t to = bits_of(static_cast<float>(largest));
  std::vector<float> all(number);
  for (std::size_t i = 0; i < number; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    all[i] = std::bit_cast<float>(
        i % 2 == 0 ? bits : (bits & 0x80000000U) | (from + static_cast<std::uint32_t>(random()) % (to - from)));
  }
  return all;
}

constexpr std::size_t kRandomFloats = 1000000;  // of each format

template <typename Format>
class NumberFormat : public testing::Test {
 protected:
  using Bits = typename Format::Bits;

  void expect_narrow(float value) const {
    const std::uint32_t expected = reference.narrow(value);
    const Bits actual = Format::narrow(value);
    ASSERT_EQ(actual, expected == Reference::kAnyNan ? Format::kNan : expected)
        << "of " << value << " with the bits 0x" << std::hex << bits_of(value);
  }

  const Reference reference{kLayout<Format>};
};

struct Names {
  template <typename Format>
  static std::string GetName(int /*index*/) {
    return kLayout<Format>.name;
  }
};
using Formats =
    testing::Types<Float16, BFloat16, Float8E4m3fn, Float8E4m3fnSaturating, Float8E4m3fnuz, Float8E5m2, Float8E5m2fnuz>;
TYPED_TEST_SUITE(NumberFormat, Formats, Names);

TYPED_TEST(NumberFormat, WidensEveryPattern) {
  ASSERT_EQ(this->reference.patterns(), std::numeric_limits<typename TypeParam::Bits>::max() + 1U);
  EXPECT_TRUE(TypeParam::kHasSign);
  for (std::uint32_t pattern = 0; pattern < this->reference.patterns(); ++pattern) {
    const auto bits = static_cast<typename TypeParam::Bits>(pattern);
    const double expected = this->reference.widen(pattern);
    const float actual = TypeParam::widen(bits);
    ASSERT_EQ(TypeParam::is_nan(bits), std::isnan(expected)) << pattern;
    ASSERT_EQ(std::isnan(actual), std::isnan(expected)) << pattern;
    if (!std::isnan(expected)) {
      ASSERT_EQ(actual, expected) << pattern;
      ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << pattern;
    }
  }
}

TYPED_TEST(NumberFormat, NarrowsEveryNumberToItself) {
  EXPECT_TRUE(TypeParam::is_nan(TypeParam::kNan));
  for (std::uint32_t pattern = 0; pattern < this->reference.patterns(); ++pattern) {
    const auto bits = static_cast<typename TypeParam::Bits>(pattern);
    const auto expected = TypeParam::is_nan(bits) ? TypeParam::kNan : bits;
    ASSERT_EQ(TypeParam::narrow(TypeParam::widen(bits)), expected) << pattern;
  }
}

TYPED_TEST(NumberFormat, RoundsToTheNearestNumber) {
  const auto check = [this](float value) { this->expect_narrow(value); };
  const std::vector<double>& numbers = this->reference.numbers();
  for (std::size_t i = 0; i < numbers.size() && !this->HasFatalFailure(); ++i) {
    const double next = i + 1 < numbers.size() ? numbers[i + 1] : this->reference.first_that_overflows();
    around(numbers[i], check);
    around((numbers[i] + next) / 2, check);
  }
  for (const float value : special_floats()) {
    this->expect_narrow(value);
  }
}

TYPED_TEST(NumberFormat, RoundsRandomNumbers) {
  const std::vector<double>& numbers = this->reference.numbers();
  for (const float value : random_floats(kRandomFloats, numbers[1] / 4, numbers.back())) {
    ASSERT_NO_FATAL_FAILURE(this->expect_narrow(value));
  }
}

// float8_e8m0fnu is no format of the kind above: it has neither sign nor mantissa.
class Float8E8m0fnuTest : public testing::Test {
 protected:
  static double widen(std::uint32_t bits) { return std::ldexp(1.0, static_cast<int>(bits) - 127); }

  static void expect_narrow(float value) {
    const double magnitude = std::fabs(static_cast<double>(value));
    std::uint32_t expected = 0;
    if (magnitude > widen(0) && magnitude < widen(1)) {
      expected = 1;
    } else if (std::isfinite(magnitude)) {
      while (expected < 0xff && magnitude >= (widen(expected) + widen(expected + 1)) / 2) {
        ++expected;
      }
    } else {
      expected = 0xff;
    }
    ASSERT_EQ(Float8E8m0fnu::narrow(value), expected) << "of " << value << " with the bits 0x" << std::hex << bits_of(value);
  }
};

TEST_F(Float8E8m0fnuTest, WidensEveryPattern) {
  EXPECT_FALSE(Float8E8m0fnu::kHasSign);
  for (std::uint32_t pattern = 0; pattern < 0xff; ++pattern) {
    const auto bits = static_cast<std::uint8_t>(pattern);
    EXPECT_FALSE(Float8E8m0fnu::is_nan(bits)) << pattern;
    EXPECT_EQ(Float8E8m0fnu::widen(bits), widen(pattern)) << pattern;
    EXPECT_EQ(Float8E8m0fnu::narrow(Float8E8m0fnu::widen(bits)), bits) << pattern;
  }
  EXPECT_TRUE(Float8E8m0fnu::is_nan(Float8E8m0fnu::kNan));
  EXPECT_EQ(Float8E8m0fnu::kNan, 0xff);
  EXPECT_TRUE(std::isnan(Float8E8m0fnu::widen(0xff)));
}

TEST_F(Float8E8m0fnuTest, RoundsLikePyTorch) {
  for (std::uint32_t pattern = 0; pattern < 0xff; ++pattern) {
    around(widen(pattern), expect_narrow);
    around((widen(pattern) + widen(pattern + 1)) / 2, expect_narrow);
  }
  around(std::ldexp(1.0, -128), expect_narrow);  // the middle between zero and the lowest number
  for (const float value : special_floats()) {
    expect_narrow(value);
  }
}

TEST_F(Float8E8m0fnuTest, RoundsRandomNumbers) {
  for (const float value : random_floats(kRandomFloats / 10, widen(0) / 4, widen(1))) {
    ASSERT_NO_FATAL_FAILURE(expect_narrow(value));
  }
}

}  // namespace
}  // namespace torch_ucc::shm
