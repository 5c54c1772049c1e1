// The loops are plain C++ that the compiler vectorises, once for each instruction set. This file
// must be compiled with -O3, which vectorises, and with -ffp-contract=off: a fused multiply-add
// would round complex products differently where the processor has one.
#include "shm/kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "shm/number_formats.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

// The iterations of the loop that follows do not depend on each other. Clang warns of each loop that
// it still does not vectorise; the few such loops are those that no instruction set helps.
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#define TORCH_UCC_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TORCH_UCC_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace torch_ucc::shm {
namespace {

static_assert(std::endian::native == std::endian::little);

// Intermediate values of this size stay in the first-level cache.
constexpr std::size_t kBlockBytes = 8192;

// An element that needs no alignment and may be an object of another type.
template <typename T>
struct [[gnu::packed, gnu::may_alias]] Unaligned {
  T value;
};

template <typename T>
struct Complex {
  T real;
  T imaginary;
};

// A codec says how an element in memory becomes the value that is computed with, and how the result
// of `number` elements becomes an element again.

template <typename T>
struct Integer {
  using Element = T;
  using Value = T;
  static Value load(Element element) { return element; }
  static Element store(Value value, std::size_t /*number*/) { return value; }
};

// A double holds any sum of 2^20 integers of 32 bits, and the truncated quotient is exact, too.
template <typename T>
struct AverageOfSmallIntegers {
  using Element = T;
  using Value = double;
  using Quotient = std::conditional_t<std::is_same_v<T, std::uint32_t>, std::int64_t, std::int32_t>;
  static Value load(Element element) { return element; }
  static Element store(Value value, std::size_t number) {
    return static_cast<Element>(static_cast<Quotient>(value / static_cast<double>(number)));
  }
};

template <typename T>
struct AverageOfLargeIntegers {
  using Element = T;
  using Value = std::uint64_t;
  static Value load(Element element) { return static_cast<Value>(element); }
  static Element store(Value value, std::size_t number) { return static_cast<Element>(value) / static_cast<Element>(number); }
};

template <typename T>
using AverageOfIntegers = std::conditional_t<sizeof(T) == 8, AverageOfLargeIntegers<T>, AverageOfSmallIntegers<T>>;

// float and double.
template <typename T>
struct Real {
  using Element = T;
  using Value = T;
  static Value load(Element element) { return element; }
  static Element store(Value value, std::size_t /*number*/) {
    // NOLINTNEXTLINE(misc-redundant-expression): a NaN does not equal itself
    return value == value ? value : std::numeric_limits<T>::quiet_NaN();
  }
};

template <typename Format>
struct Narrow {
  using Element = typename Format::Bits;
  using Value = float;
  static Value load(Element element) { return Format::widen(element); }
  static Element store(Value value, std::size_t /*number*/) { return Format::narrow(value); }
};

template <typename Codec>
struct AverageOfReals : Codec {
  static typename Codec::Element store(typename Codec::Value value, std::size_t number) {
    return Codec::store(value / static_cast<typename Codec::Value>(number), number);
  }
};

// Takes two neighbouring bfloat16 as one integer: both become floats in place, and no instruction
// moves them between lanes of a vector. The value is a Complex because Plus adds both of its parts.
template <typename Codec>
struct TwoBFloat16 {
  using Element = std::uint32_t;
  using Value = Complex<float>;
  static Value load(Element element) {
    return {std::bit_cast<float>(element << 16U), std::bit_cast<float>(element & 0xffff0000U)};
  }
  static Element store(Value value, std::size_t number) {
    return Codec::store(value.real, number) | static_cast<Element>(Codec::store(value.imaginary, number)) << 16U;
  }
};

template <typename Codec>
struct Pairs {
  using Element = Complex<typename Codec::Element>;
  using Value = Complex<typename Codec::Value>;
  static Value load(Element element) { return {Codec::load(element.real), Codec::load(element.imaginary)}; }
  static Element store(Value value, std::size_t number) {
    return {Codec::store(value.real, number), Codec::store(value.imaginary, number)};
  }
};

// Divides by the complex number (number, 0) in the steps of c10::complex, which decide the rounding
// and the infinities.
template <typename Codec>
struct AverageOfPairs : Pairs<Codec> {
  static typename Pairs<Codec>::Element store(typename Pairs<Codec>::Value value, std::size_t number) {
    using Part = typename Codec::Value;
    const Part inverse = Part{1} / static_cast<Part>(number);
    const Part zero = 0;
    return Pairs<Codec>::store({(value.real + value.imaginary * zero) * inverse, (value.imaginary - value.real * zero) * inverse},
                               number);
  }
};

// Integers in the order of the floats. A NaN becomes the integer that the minimum or the maximum
// keeps, which is not the integer of any number.
template <typename Format, bool kNanIsLowest>
struct Ordered {
  using Element = typename Format::Bits;
  using Signed = std::make_signed_t<Element>;
  using Value = std::conditional_t<sizeof(Element) == 1, std::int16_t, Signed>;
  static constexpr Value kNan = kNanIsLowest ? std::numeric_limits<Value>::min() : std::numeric_limits<Value>::max();

  // Turns the magnitude of negative numbers round, and is its own inverse.
  static Value flip(Value value) {
    return static_cast<Value>(value ^ (static_cast<Value>(value < 0 ? -1 : 0) & std::numeric_limits<Signed>::max()));
  }
  static Value load(Element element) {
    const Value number = Format::kHasSign ? flip(static_cast<Signed>(element)) : static_cast<Value>(element);
    return Format::is_nan(element) ? kNan : number;
  }
  static Element store(Value value, std::size_t /*number*/) {
    const auto number = static_cast<Element>(Format::kHasSign ? flip(value) : value);
    return value == kNan ? Format::kNan : number;
  }
};

struct Float32 {
  using Bits = std::uint32_t;
  static constexpr bool kHasSign = true;
  static constexpr Bits kNan = kFloatNan;
  static bool is_nan(Bits bits) { return (bits & ~kFloatSign) > kFloatInfinity; }
};

struct Float64 {
  using Bits = std::uint64_t;
  static constexpr bool kHasSign = true;
  static constexpr Bits kNan = 0x7ff8000000000000;
  static bool is_nan(Bits bits) { return (bits & 0x7fffffffffffffff) > 0x7ff0000000000000; }
};

// Operations. Integers are unsigned where the result can overflow.

struct Plus {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a + b);
  }
  template <typename T>
  static Complex<T> combine(Complex<T> a, Complex<T> b) {
    return {a.real + b.real, a.imaginary + b.imaginary};
  }
};

struct Times {
  template <typename T>
  static T combine(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(1U * a * b);  // 1U keeps uint16 from becoming int, which can overflow
    } else {
      return a * b;
    }
  }
  // Changes a sign in the bits and then adds. GCC 12 fuses a subtraction beside an addition with the
  // products, in spite of -ffp-contract=off.
  template <typename T>
  static Complex<T> combine(Complex<T> a, Complex<T> b) {
    using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    constexpr Bits kSign = Bits{1} << (8 * sizeof(T) - 1);
    const T negated = std::bit_cast<T>(std::bit_cast<Bits>(a.imaginary) ^ kSign);
    return {a.real * b.real + negated * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
  }
};

struct Least {
  template <typename T>
  static T combine(T a, T b) {
    return b < a ? b : a;
  }
};

struct Greatest {
  template <typename T>
  static T combine(T a, T b) {
    return a < b ? b : a;
  }
};

struct And {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a & b);
  }
};

struct Or {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a | b);
  }
};

struct Xor {
  template <typename T>
  static T combine(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

template <typename Codec, typename Op>
struct Reduction {
  using Element = typename Codec::Element;
  using Value = typename Codec::Value;
  static constexpr std::size_t kBlock = kBlockBytes / sizeof(Value);

  static auto* at(void* data) { return static_cast<Unaligned<Element>*>(data); }
  static const auto* at(const void* data) { return static_cast<const Unaligned<Element>*>(data); }

  static void run(void* dst, const void* const* sources, std::size_t number, std::size_t count) {
    if (number == 1) {
      if (dst != sources[0] && count != 0) {
        std::memcpy(dst, sources[0], count * sizeof(Element));
      }
    } else {
      run_range(dst, sources, number, 0, count);
    }
  }

  // Reduces the elements from `begin` to `end` of at least two sources.
  static void run_range(void* dst, const void* const* sources, std::size_t number, std::size_t begin, std::size_t end) {
    if (number == 2) {
      run_two(at(dst) + begin, at(sources[0]) + begin, at(sources[1]) + begin, end - begin);
    } else {
      for (; begin < end; begin += kBlock) {
        run_block(at(dst) + begin, sources, number, begin, std::min(kBlock, end - begin));
      }
    }
  }

  static void run_two(Unaligned<Element>* dst, const Unaligned<Element>* a, const Unaligned<Element>* b, std::size_t count) {
    TORCH_UCC_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      dst[i].value = Codec::store(Op::combine(Codec::load(a[i].value), Codec::load(b[i].value)), 2);
    }
  }

  static void run_block(Unaligned<Element>* dst, const void* const* sources, std::size_t number, std::size_t begin,
                        std::size_t count) {
    std::array<Value, kBlock> values;
    const auto* first = at(sources[0]) + begin;
    const auto* second = at(sources[1]) + begin;
    TORCH_UCC_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = Op::combine(Codec::load(first[i].value), Codec::load(second[i].value));
    }
    for (std::size_t source = 2; source + 1 < number; ++source) {
      const auto* next = at(sources[source]) + begin;
      asm volatile("");  // GCC would merge two rounds of the outer loop and then vectorise nothing
      TORCH_UCC_INDEPENDENT
      for (std::size_t i = 0; i < count; ++i) {
        values[i] = Op::combine(values[i], Codec::load(next[i].value));
      }
    }
    const auto* last = at(sources[number - 1]) + begin;
    TORCH_UCC_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      dst[i].value = Codec::store(Op::combine(values[i], Codec::load(last[i].value)), number);
    }
  }
};

// In place of the codec of a bfloat16: Reduction takes two elements at once, and the last one alone
// if their number is odd.
template <typename Codec>
struct InTwos;

template <typename Codec, typename Op>
struct Reduction<InTwos<Codec>, Op> {
  static void run(void* dst, const void* const* sources, std::size_t number, std::size_t count) {
    using Single = Reduction<Codec, Op>;
    if (number == 1) {
      Single::run(dst, sources, number, count);
      return;
    }
    Reduction<TwoBFloat16<Codec>, Op>::run(dst, sources, number, count / 2);
    if (count % 2 != 0) {
      Single::run_range(dst, sources, number, count - 1, count);
    }
  }
};

#if defined(__x86_64__)
// sum, product and average of float16, with the instructions that convert it, which compilers do not
// choose by themselves. They round like Float16::narrow, and keep subnormal numbers. The loops that
// the compiler makes of Narrow<Float16> take ten times as long.
template <typename Op, bool kDivides>
[[gnu::target("avx2,f16c")]] void reduce_float16(void* dst, const void* const* sources, std::size_t number, std::size_t count) {
  using Codec = std::conditional_t<kDivides, AverageOfReals<Narrow<Float16>>, Narrow<Float16>>;
  using Rest = Reduction<Codec, Op>;
  constexpr std::size_t kLanes = 8;
  if (number == 1) {
    Rest::run(dst, sources, number, count);
    return;
  }
  const __m256 divisor = _mm256_set1_ps(static_cast<float>(number));
  const __m256 nan = _mm256_set1_ps(std::numeric_limits<float>::quiet_NaN());
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    __m256 value{};
    for (std::size_t source = 0; source < number; ++source) {
      const auto* const halves = static_cast<const Float16::Bits*>(sources[source]) + i;
      const __m256 next = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
      value = source == 0 ? next : std::is_same_v<Op, Plus> ? value + next : value * next;
    }
    if constexpr (kDivides) {
      value /= divisor;
    }
    value = _mm256_blendv_ps(value, nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<Float16::Bits*>(dst) + i),
                     _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
  Rest::run_range(dst, sources, number, i, count);
}
#endif

// `flatten` inlines the reduction, so that all of it is compiled for the instruction set.
// `kParts`: of how many elements of the reduction an element of the caller consists.

template <InstructionSet kSet, typename Codec, typename Op, std::size_t kParts>
struct Compiled;

template <typename Codec, typename Op, std::size_t kParts>
struct Compiled<InstructionSet::baseline, Codec, Op, kParts> {
  [[gnu::flatten]] static void run(void* dst, const void* const* sources, std::size_t number, std::size_t count) {
    Reduction<Codec, Op>::run(dst, sources, number, count * kParts);
  }
};

#if defined(__x86_64__)
template <typename Codec, typename Op, std::size_t kParts>
struct Compiled<InstructionSet::avx2, Codec, Op, kParts> {
  [[gnu::flatten, gnu::target("avx2")]] static void run(void* dst, const void* const* sources, std::size_t number,
                                                        std::size_t count) {
    Reduction<Codec, Op>::run(dst, sources, number, count * kParts);
  }
};

template <typename Codec, typename Op, std::size_t kParts>
struct Compiled<InstructionSet::avx512, Codec, Op, kParts> {
  [[gnu::flatten, gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] static void run(void* dst, const void* const* sources,
                                                                                      std::size_t number, std::size_t count) {
    Reduction<Codec, Op>::run(dst, sources, number, count * kParts);
  }
};
#endif

template <InstructionSet kSet, typename Codec, typename Op, std::size_t kParts = 1>
constexpr Reduce kKernel = &Compiled<kSet, Codec, Op, kParts>::run;

// The columns are in the order of ReduceOp.
using Row = std::array<Reduce, kReduceOps>;

template <InstructionSet kSet, typename T>
constexpr Row integers() {
  using Wrapping = Integer<std::make_unsigned_t<T>>;
  using Byte = Integer<std::uint8_t>;
  return {kKernel<kSet, Wrapping, Plus>,       kKernel<kSet, Wrapping, Times>,           kKernel<kSet, Integer<T>, Least>,
          kKernel<kSet, Integer<T>, Greatest>, kKernel<kSet, Byte, And, sizeof(T)>,      kKernel<kSet, Byte, Or, sizeof(T)>,
          kKernel<kSet, Byte, Xor, sizeof(T)>, kKernel<kSet, AverageOfIntegers<T>, Plus>};
}

template <InstructionSet kSet, typename Codec, typename Format>
constexpr Row reals() {
  return {kKernel<kSet, Codec, Plus>,
          kKernel<kSet, Codec, Times>,
          kKernel<kSet, Ordered<Format, true>, Least>,
          kKernel<kSet, Ordered<Format, false>, Greatest>,
          nullptr,
          nullptr,
          nullptr,
          kKernel<kSet, AverageOfReals<Codec>, Plus>};
}

template <InstructionSet kSet, typename Format>
constexpr Row narrow() {
  return reals<kSet, Narrow<Format>, Format>();
}

template <InstructionSet kSet>
constexpr Row float16() {
  Row row = narrow<kSet, Float16>();
#if defined(__x86_64__)
  if (kSet != InstructionSet::baseline) {
    row[static_cast<std::size_t>(ReduceOp::sum)] = &reduce_float16<Plus, false>;
    row[static_cast<std::size_t>(ReduceOp::product)] = &reduce_float16<Times, false>;
    row[static_cast<std::size_t>(ReduceOp::average)] = &reduce_float16<Plus, true>;
  }
#endif
  return row;
}

template <InstructionSet kSet>
constexpr Row bfloat16() {
  using Codec = Narrow<BFloat16>;
  Row row = narrow<kSet, BFloat16>();
  row[static_cast<std::size_t>(ReduceOp::sum)] = kKernel<kSet, InTwos<Codec>, Plus>;
  row[static_cast<std::size_t>(ReduceOp::average)] = kKernel<kSet, InTwos<AverageOfReals<Codec>>, Plus>;
  return row;
}

template <InstructionSet kSet, typename Codec>
constexpr Row complex() {
  return {kKernel<kSet, Codec, Plus, 2>,
          kKernel<kSet, Pairs<Codec>, Times>,
          nullptr,
          nullptr,
          nullptr,
          nullptr,
          nullptr,
          kKernel<kSet, AverageOfPairs<Codec>, Plus>};
}

// The rows are in the order of DataType.
using Table = std::array<Row, kDataTypes>;

template <InstructionSet kSet>
constexpr Table kTable{
    integers<kSet, std::uint8_t>(),
    integers<kSet, std::int8_t>(),
    integers<kSet, std::uint16_t>(),
    integers<kSet, std::int16_t>(),
    integers<kSet, std::uint32_t>(),
    integers<kSet, std::int32_t>(),
    integers<kSet, std::uint64_t>(),
    integers<kSet, std::int64_t>(),
    float16<kSet>(),
    bfloat16<kSet>(),
    reals<kSet, Real<float>, Float32>(),
    reals<kSet, Real<double>, Float64>(),
    narrow<kSet, Float8E4m3fn>(),
    narrow<kSet, Float8E4m3fnSaturating>(),
    narrow<kSet, Float8E4m3fnuz>(),
    narrow<kSet, Float8E5m2>(),
    narrow<kSet, Float8E5m2fnuz>(),
    narrow<kSet, Float8E8m0fnu>(),
    complex<kSet, Narrow<Float16>>(),
    complex<kSet, Real<float>>(),
    complex<kSet, Real<double>>(),
};

const Table& table(InstructionSet set) {
#if defined(__x86_64__)
  constexpr std::array kTables{&kTable<InstructionSet::baseline>, &kTable<InstructionSet::avx2>, &kTable<InstructionSet::avx512>};
#else
  constexpr std::array kTables{&kTable<InstructionSet::baseline>};
#endif
  return *kTables[static_cast<std::size_t>(set)];
}

}  // namespace

std::size_t size_of(DataType type) {
  constexpr std::array<std::uint8_t, kDataTypes> kSizes{1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 1, 1, 1, 1, 4, 8, 16};
  return kSizes[static_cast<std::size_t>(type)];
}

std::span<const InstructionSet> instruction_sets() {
  static constexpr std::array kSets{InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512};
  static const std::size_t number = [] {
#if defined(__x86_64__)
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
    const bool avx2 = f16c && __builtin_cpu_supports("avx2") != 0;
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                        __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
    return avx512 ? 3U : avx2 ? 2U : 1U;
#else
    return 1U;
#endif
  }();
  return {kSets.data(), number};
}

Reduce reduce_kernel(DataType type, ReduceOp op, InstructionSet set) {
  return table(set)[static_cast<std::size_t>(type)][static_cast<std::size_t>(op)];
}

Reduce reduce_kernel(DataType type, ReduceOp op) { return reduce_kernel(type, op, instruction_sets().back()); }

}  // namespace torch_ucc::shm
