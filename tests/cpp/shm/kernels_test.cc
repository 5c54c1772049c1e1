#include "shm/kernels.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "shm/number_formats.h"

namespace torch_ucc::shm {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::array kAllOps{ReduceOp::sum,     ReduceOp::product, ReduceOp::min,     ReduceOp::max,
                             ReduceOp::bit_and, ReduceOp::bit_or,  ReduceOp::bit_xor, ReduceOp::average};
constexpr std::array kOpNames{"sum", "product", "min", "max", "bit_and", "bit_or", "bit_xor", "average"};
static_assert(kAllOps.size() == kReduceOps && kOpNames.size() == kReduceOps);

// --- a slow reference that computes one element at a time ---------------------------------------

// A function that the compiler must not inline, because it could fuse the product with a sum.
template <typename T>
[[gnu::noinline]] T times(T a, T b) {
  return a * b;
}

template <typename T>
T reduce_integers(ReduceOp op, const std::vector<T>& elements) {
  using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  const auto number = static_cast<Wide>(elements.size());
  const auto extended = [](T element) {
    return static_cast<std::uint64_t>(element);  // NOLINT(bugprone-signed-char-misuse): an int8 is a number here
  };
  std::uint64_t result = extended(elements[0]);
  for (std::size_t i = 1; i < elements.size(); ++i) {
    const std::uint64_t next = extended(elements[i]);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::average:
        result += next;
        break;
      case ReduceOp::product:
        result *= next;
        break;
      case ReduceOp::min:
        result = elements[i] < static_cast<T>(result) ? next : result;
        break;
      case ReduceOp::max:
        result = elements[i] > static_cast<T>(result) ? next : result;
        break;
      case ReduceOp::bit_and:
        result &= next;
        break;
      case ReduceOp::bit_or:
        result |= next;
        break;
      case ReduceOp::bit_xor:
        result ^= next;
        break;
    }
  }
  return static_cast<T>(op == ReduceOp::average ? static_cast<std::uint64_t>(static_cast<Wide>(result) / number) : result);
}

// float and double with the members of the structs in number_formats.h.
template <typename T, typename BitsType, BitsType kNanBits>
struct Native {
  using Bits = BitsType;
  static constexpr Bits kNan = kNanBits;
  static T widen(Bits bits) { return std::bit_cast<T>(bits); }
  static Bits narrow(T value) { return std::isnan(value) ? kNan : std::bit_cast<Bits>(value); }
};
using Float32 = Native<float, std::uint32_t, 0x7fc00000>;
using Float64 = Native<double, std::uint64_t, 0x7ff8000000000000>;

template <typename T>
bool is_below(T a, T b) {
  return a < b || (a == b && std::signbit(a) && !std::signbit(b));
}

template <typename Format>
typename Format::Bits reduce_reals(ReduceOp op, const std::vector<typename Format::Bits>& elements) {
  auto result = Format::widen(elements[0]);
  for (std::size_t i = 1; i < elements.size(); ++i) {
    const auto next = Format::widen(elements[i]);
    if (std::isnan(result) || std::isnan(next)) {
      return Format::kNan;  // nothing turns a NaN into a number again
    }
    switch (op) {
      case ReduceOp::product:
        result = times(result, next);
        break;
      case ReduceOp::min:
        result = is_below(next, result) ? next : result;
        break;
      case ReduceOp::max:
        result = is_below(result, next) ? next : result;
        break;
      default:
        result += next;
        break;
    }
  }
  if (op == ReduceOp::average) {
    result /= static_cast<decltype(result)>(elements.size());
  }
  return Format::narrow(result);
}

template <typename Format>
struct Complex {
  typename Format::Bits real;
  typename Format::Bits imaginary;
};

template <typename Format>
Complex<Format> reduce_complex(ReduceOp op, const std::vector<Complex<Format>>& elements) {
  using Part = decltype(Format::widen({}));
  Part real = Format::widen(elements[0].real);
  Part imaginary = Format::widen(elements[0].imaginary);
  for (std::size_t i = 1; i < elements.size(); ++i) {
    const Part next_real = Format::widen(elements[i].real);
    const Part next_imaginary = Format::widen(elements[i].imaginary);
    if (op == ReduceOp::product) {
      const Part product = times(real, next_real) - times(imaginary, next_imaginary);
      imaginary = times(real, next_imaginary) + times(imaginary, next_real);
      real = product;
    } else {
      real += next_real;
      imaginary += next_imaginary;
    }
  }
  if (op == ReduceOp::average) {
    // The steps of PyTorch for the division by the complex number (n, 0).
    const Part inverse = Part{1} / static_cast<Part>(elements.size());
    const Part dividend = real;
    real = times(dividend + times(imaginary, Part{0}), inverse);
    imaginary = times(imaginary - times(dividend, Part{0}), inverse);
  }
  return {Format::narrow(real), Format::narrow(imaginary)};
}

// Writes `count` elements of the result to `dst`. `function` reduces the elements of one index.
template <typename Element, Element (*function)(ReduceOp, const std::vector<Element>&)>
void reduce_slowly(ReduceOp op, std::uint8_t* dst, const std::vector<const void*>& sources, std::size_t count) {
  std::vector<Element> elements(sources.size());
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t source = 0; source < sources.size(); ++source) {
      std::memcpy(&elements[source], static_cast<const std::uint8_t*>(sources[source]) + i * sizeof(Element), sizeof(Element));
    }
    const Element result = elements.size() == 1 ? elements[0] : function(op, elements);
    std::memcpy(dst + i * sizeof(Element), &result, sizeof(Element));
  }
}

// --- the types -----------------------------------------------------------------------------------

using SlowReduce = void (*)(ReduceOp, std::uint8_t*, const std::vector<const void*>&, std::size_t);

// The parts of an element, of which a complex number has two, are integers or floats.
struct Type {
  DataType type;
  const char* name;
  std::size_t part_size;
  std::size_t parts;
  SlowReduce reduce;
  std::string ops;  // names of the ops that have a kernel, with spaces around them
  bool is_float = false;
  bool has_sign = true;  // of floats
  int mantissa_bits = 0;
  std::uint64_t one = 0;  // the bits of the number 1, or of a number near it

  std::size_t size() const { return part_size * parts; }
};

constexpr const char* kIntegerOps = " sum product min max bit_and bit_or bit_xor average ";
constexpr const char* kRealOps = " sum product min max average ";
constexpr const char* kComplexOps = " sum product average ";

template <typename T>
Type integer(DataType type, const char* name) {
  return {type, name, sizeof(T), 1, reduce_slowly<T, reduce_integers<T>>, kIntegerOps};
}

template <typename Format>
Type real(DataType type, const char* name, int mantissa_bits, std::uint64_t one, bool has_sign = true) {
  using Bits = typename Format::Bits;
  return {type, name, sizeof(Bits), 1, reduce_slowly<Bits, reduce_reals<Format>>, kRealOps, true, has_sign, mantissa_bits, one};
}

template <typename Format>
Type complex(DataType type, const char* name, int mantissa_bits, std::uint64_t one) {
  return {type,
          name,
          sizeof(Complex<Format>) / 2,
          2,
          reduce_slowly<Complex<Format>, reduce_complex<Format>>,
          kComplexOps,
          true,
          true,
          mantissa_bits,
          one};
}

const std::vector<Type>& all_types() {
  static const std::vector<Type> all{
      integer<std::uint8_t>(DataType::uint8, "uint8"),
      integer<std::int8_t>(DataType::int8, "int8"),
      integer<std::uint16_t>(DataType::uint16, "uint16"),
      integer<std::int16_t>(DataType::int16, "int16"),
      integer<std::uint32_t>(DataType::uint32, "uint32"),
      integer<std::int32_t>(DataType::int32, "int32"),
      integer<std::uint64_t>(DataType::uint64, "uint64"),
      integer<std::int64_t>(DataType::int64, "int64"),
      real<Float16>(DataType::float16, "float16", 10, 0x3c00),
      real<BFloat16>(DataType::bfloat16, "bfloat16", 7, 0x3f80),
      real<Float32>(DataType::float32, "float32", 23, 0x3f800000),
      real<Float64>(DataType::float64, "float64", 52, 0x3ff0000000000000),
      real<Float8E4m3fn>(DataType::float8_e4m3fn, "float8_e4m3fn", 3, 0x38),
      real<Float8E4m3fnSaturating>(DataType::float8_e4m3fn_saturating, "float8_e4m3fn_saturating", 3, 0x38),
      real<Float8E4m3fnuz>(DataType::float8_e4m3fnuz, "float8_e4m3fnuz", 3, 0x40),
      real<Float8E5m2>(DataType::float8_e5m2, "float8_e5m2", 2, 0x3c),
      real<Float8E5m2fnuz>(DataType::float8_e5m2fnuz, "float8_e5m2fnuz", 2, 0x40),
      real<Float8E8m0fnu>(DataType::float8_e8m0fnu, "float8_e8m0fnu", 0, 127, false),
      complex<Float16>(DataType::complex_half, "complex_half", 10, 0x3c00),
      complex<Float32>(DataType::complex_float, "complex_float", 23, 0x3f800000),
      complex<Float64>(DataType::complex_double, "complex_double", 52, 0x3ff0000000000000),
  };
  return all;
}

// --- the values ----------------------------------------------------------------------------------

// Returns the bits of parts of elements. Only the lowest bytes, as many as a part has, count.
class Values {
 public:
  explicit Values(const Type& type) : type_(type), sign_(type.has_sign ? std::uint64_t{1} << (8 * type.part_size - 1) : 0) {
    const std::uint64_t highest = ~std::uint64_t{0} >> (64 - 8 * type.part_size);
    if (!type.is_float) {
      special_ = {0, 0, 1, ~std::uint64_t{0}, sign_, sign_ + 1, sign_ - 1, sign_ - 2, 2, highest - 1};
      return;
    }
    // Those that are no NaN in one format are large numbers in another.
    const std::uint64_t hidden = std::uint64_t{1} << type.mantissa_bits;
    const std::uint64_t infinity = (highest & ~sign_) + 1 - hidden;
    for (const std::uint64_t magnitude :
         {std::uint64_t{0}, std::uint64_t{1}, hidden - 1, hidden, hidden + 1, type.one, infinity - 1, infinity - 2, infinity,
          infinity + 1, infinity + hidden / 2, highest & ~sign_}) {
      special_.push_back(magnitude);
      special_.push_back(magnitude | sign_);
    }
  }

  // Fills the part of one index in each of the sources. Some indices get only ordinary numbers,
  // because one NaN hides what the other numbers become.
  template <typename Put>
  void fill(std::size_t sources, Put put) {
    const std::uint64_t kind = random_() % 8;
    const std::uint64_t exceptional = random_() % sources;
    for (std::size_t source = 0; source < sources; ++source) {
      switch (kind) {
        case 0:
          put(source, random_());
          break;
        case 1:
          put(source, special_[random_() % special_.size()]);
          break;
        case 2:
          put(source, special_[random_() % 4]);  // zeros and the lowest numbers
          break;
        case 3:
          put(source, large());
          break;
        case 4:
          put(source, source == exceptional ? special_[random_() % special_.size()] : ordinary());
          break;
        default:
          put(source, ordinary());
          break;
      }
    }
  }

 private:
  // A number near 1, or a small integer.
  std::uint64_t ordinary() {
    const std::uint64_t bits = random_();
    if (!type_.is_float) {
      return bits % 200 - 100;
    }
    const std::uint64_t hidden = std::uint64_t{1} << type_.mantissa_bits;
    return (bits & sign_) | ((type_.one - 2 * hidden + (bits >> 8U) % (4 * hidden)) & ~sign_);
  }

  // A number near the largest one, or near the ends of the integers.
  std::uint64_t large() {
    const std::uint64_t bits = random_();
    const std::uint64_t hidden = std::uint64_t{1} << type_.mantissa_bits;
    const std::uint64_t highest = type_.is_float ? (~std::uint64_t{0} >> (64 - 8 * type_.part_size) & ~sign_) - hidden : sign_;
    return (bits & sign_) | ((highest - bits / 2 % (type_.is_float ? 3 * hidden : 100)) & ~sign_);
  }

  const Type& type_;
  std::uint64_t sign_;
  std::vector<std::uint64_t> special_;
  std::mt19937_64 random_{20240517};
};

constexpr std::size_t kMostSources = 64;
// More elements than a block of the kernels has of the smallest values, and an odd number.
constexpr std::size_t kMany = 8192 + 67;
constexpr std::size_t kFew = 67;

// `kMostSources` arrays of `kMany` elements, which begin at different distances from a multiple
// of 64: 0, 1, 2, ... bytes.
class Inputs {
 public:
  explicit Inputs(const Type& type) : type_(type), bytes_(kMostSources) {
    for (Bytes& each : bytes_) {
      each.resize(kMany * type.size() + 2 * kMostSources);
    }
    Values values(type);
    for (std::size_t part = 0; part < kMany * type.parts; ++part) {
      values.fill(kMostSources, [&](std::size_t source, std::uint64_t bits) {
        std::memcpy(begin(source) + part * type.part_size, &bits, type.part_size);
      });
    }
  }

  // Pointers to the element `first` of the first `number` sources.
  std::vector<const void*> sources(std::size_t number, std::size_t first = 0) {
    std::vector<const void*> all;
    for (std::size_t source = 0; source < number; ++source) {
      all.push_back(begin(source) + first * type_.size());
    }
    return all;
  }

  Bytes reduce(ReduceOp op, const std::vector<const void*>& sources, std::size_t count) const {
    Bytes result(count * type_.size());
    type_.reduce(op, result.data(), sources, count);
    return result;
  }

 private:
  std::uint8_t* begin(std::size_t source) {
    std::uint8_t* const data = bytes_[source].data();
    return data + (kMostSources - reinterpret_cast<std::uintptr_t>(data) % kMostSources) + source;
  }

  const Type& type_;
  std::vector<Bytes> bytes_;
};

// Room for a result between bytes that must not change.
class Output {
 public:
  explicit Output(std::size_t size, std::size_t distance = 0)
      : begin_(kGuard + distance), size_(size), bytes_(begin_ + size + kGuard, kMark) {}

  std::uint8_t* data() { return bytes_.data() + begin_; }

  bool nothing_outside_was_written() const {
    const auto is_mark = [](std::uint8_t byte) { return byte == kMark; };
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(begin_);
    return std::all_of(bytes_.begin(), begin, is_mark) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(size_), bytes_.end(), is_mark);
  }

 private:
  static constexpr std::size_t kGuard = 192;
  static constexpr std::uint8_t kMark = 0xa5;

  std::size_t begin_;
  std::size_t size_;
  Bytes bytes_;
};

// Names the first element that differs, with those of the sources.
testing::AssertionResult same(const Type& type, const std::uint8_t* actual, const std::uint8_t* expected, std::size_t count,
                              const std::vector<const void*>& sources) {
  if (count == 0 || std::memcmp(actual, expected, count * type.size()) == 0) {
    return testing::AssertionSuccess();
  }
  std::size_t at = 0;
  while (std::memcmp(actual + at * type.size(), expected + at * type.size(), type.size()) == 0) {
    ++at;
  }
  const auto element = [&](const void* data) {
    std::ostringstream text;
    for (std::size_t byte = type.size(); byte > 0; --byte) {
      constexpr const char* kDigits = "0123456789abcdef";
      const std::uint8_t value = static_cast<const std::uint8_t*>(data)[at * type.size() + byte - 1];
      text << kDigits[value / 16] << kDigits[value % 16];
    }
    return text.str();
  };
  testing::AssertionResult failure = testing::AssertionFailure();
  failure << "element " << at << " of " << count << " is " << element(actual) << ", not " << element(expected) << "; sources:";
  for (const void* source : sources) {
    failure << " " << element(source);
  }
  return failure;
}

const char* op_name(ReduceOp op) { return kOpNames[static_cast<std::size_t>(op)]; }

std::string described(const Type& type, ReduceOp op) { return std::string(type.name) + " " + op_name(op); }

// Calls `check` with each kernel of each type and op, and with the inputs of the type.
template <typename Check>
void for_each_kernel(Check check) {
  for (const Type& type : all_types()) {
    Inputs inputs(type);
    for (const ReduceOp op : kAllOps) {
      if (reduce_kernel(type.type, op) == nullptr) {
        continue;
      }
      for (const InstructionSet set : instruction_sets()) {
        SCOPED_TRACE(described(type, op) + " with instruction set " + std::to_string(static_cast<int>(set)));
        check(type, op, reduce_kernel(type.type, op, set), inputs);
        if (testing::Test::HasFatalFailure()) {
          return;  // thousands of messages would say the same
        }
      }
    }
  }
}

// --- tests of all kernels ------------------------------------------------------------------------

TEST(Kernels, ExistForThePairsThatHaveAMeaning) {
  ASSERT_EQ(all_types().size(), kDataTypes);
  ASSERT_EQ(instruction_sets().front(), InstructionSet::baseline);
  ASSERT_TRUE(std::is_sorted(instruction_sets().begin(), instruction_sets().end()));
  for (std::size_t i = 0; i < kDataTypes; ++i) {
    const Type& type = all_types()[i];
    ASSERT_EQ(type.type, static_cast<DataType>(i));
    EXPECT_EQ(size_of(type.type), type.size()) << type.name;
    for (const ReduceOp op : kAllOps) {
      const std::string name = std::string(" ") + op_name(op) + " ";
      const bool expected = type.ops.find(name) != std::string::npos;
      for (const InstructionSet set : instruction_sets()) {
        EXPECT_EQ(reduce_kernel(type.type, op, set) != nullptr, expected) << described(type, op);
      }
      EXPECT_EQ(reduce_kernel(type.type, op), reduce_kernel(type.type, op, instruction_sets().back())) << described(type, op);
    }
  }
}

// All instruction sets are compared with the same reference, so that they agree with each other.
TEST(Kernels, AgreeWithTheReference) {
  for (const Type& type : all_types()) {
    Inputs inputs(type);
    for (const ReduceOp op : kAllOps) {
      if (reduce_kernel(type.type, op) == nullptr) {
        continue;
      }
      for (const std::size_t number : {1, 2, 3, 4, 5, 6, 7, 8, 9, 64}) {
        const Bytes expected = inputs.reduce(op, inputs.sources(number), kMany);
        for (const InstructionSet set : instruction_sets()) {
          const Reduce kernel = reduce_kernel(type.type, op, set);
          for (std::size_t count = 0; count <= kFew + 1; ++count) {
            const std::size_t size = count > kFew ? kMany : count;
            const std::size_t first = count > kFew ? 0 : 97 * count;
            const std::vector<const void*> sources = inputs.sources(number, first);
            Output output(size * type.size(), count);
            kernel(output.data(), sources.data(), number, size);
            ASSERT_TRUE(same(type, output.data(), expected.data() + first * type.size(), size, sources))
                << described(type, op) << " with instruction set " << static_cast<int>(set);
            ASSERT_TRUE(output.nothing_outside_was_written())
                << described(type, op) << " with instruction set " << static_cast<int>(set) << ", " << size << " elements";
          }
        }
      }
    }
  }
}

TEST(Kernels, ReduceEveryPairOfBytes) {
  constexpr std::size_t kPairs = std::size_t{256} * 256;
  Bytes a(kPairs);
  Bytes b(kPairs);
  for (std::size_t i = 0; i < kPairs; ++i) {
    a[i] = static_cast<std::uint8_t>(i / 256);
    b[i] = static_cast<std::uint8_t>(i % 256);
  }
  const std::vector<const void*> sources{a.data(), b.data()};
  for_each_kernel([&](const Type& type, ReduceOp op, Reduce kernel, Inputs& inputs) {
    if (type.size() == 1) {
      Bytes actual(kPairs);
      kernel(actual.data(), sources.data(), 2, kPairs);
      ASSERT_TRUE(same(type, actual.data(), inputs.reduce(op, sources, kPairs).data(), kPairs, sources));
    }
  });
}

TEST(Kernels, WriteOverAnyOfTheSources) {
  for_each_kernel([](const Type& type, ReduceOp op, Reduce kernel, Inputs& inputs) {
    for (const std::size_t number : {1, 2, 3, 9}) {
      const std::vector<const void*> sources = inputs.sources(number);
      const Bytes expected = inputs.reduce(op, sources, kMany);
      for (std::size_t target = 0; target < number; ++target) {
        for (const std::size_t count : {kFew, kMany}) {
          Output output(count * type.size(), target);
          std::memcpy(output.data(), sources[target], count * type.size());
          std::vector<const void*> replaced = sources;
          replaced[target] = output.data();
          kernel(output.data(), replaced.data(), number, count);
          ASSERT_TRUE(same(type, output.data(), expected.data(), count, sources))
              << "dst is source " << target << " of " << number;
          ASSERT_TRUE(output.nothing_outside_was_written());
        }
      }
    }
  });
}

TEST(Kernels, TakeTheSameSourceSeveralTimes) {
  for_each_kernel([](const Type& type, ReduceOp op, Reduce kernel, Inputs& inputs) {
    const std::vector<const void*> two = inputs.sources(2);
    for (const auto& sources :
         {std::vector<const void*>{two[0], two[0]}, {two[0], two[0], two[0]}, {two[0], two[1], two[0], two[1]}}) {
      Bytes actual(kFew * type.size());
      kernel(actual.data(), sources.data(), sources.size(), kFew);
      ASSERT_TRUE(same(type, actual.data(), inputs.reduce(op, sources, kFew).data(), kFew, sources));
    }
  });
}

TEST(Kernels, ReduceInPiecesOfAnySize) {
  for_each_kernel([](const Type& type, ReduceOp /*op*/, Reduce kernel, Inputs& inputs) {
    for (const std::size_t number : {2, 5}) {
      const std::vector<const void*> sources = inputs.sources(number);
      Bytes whole(kMany * type.size());
      kernel(whole.data(), sources.data(), number, kMany);
      Bytes pieces(whole.size());
      std::mt19937 random(20240517);
      for (std::size_t begin = 0; begin < kMany;) {
        const std::size_t count = std::min<std::size_t>(random() % (random() % 4 == 0 ? 3000 : 40), kMany - begin);
        kernel(pieces.data() + begin * type.size(), inputs.sources(number, begin).data(), number, count);
        begin += count;
      }
      ASSERT_TRUE(same(type, pieces.data(), whole.data(), kMany, sources));
    }
  });
}

// Bytes that end where a page begins that no process may touch.
class Fenced {
 public:
  Fenced() {
    EXPECT_NE(pages_, MAP_FAILED);
    EXPECT_EQ(::mprotect(pages_ + page(), page(), PROT_NONE), 0);
  }
  ~Fenced() { ::munmap(pages_, 2 * page()); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;

  // Returns the last `size` bytes before the page.
  std::uint8_t* last(std::size_t size) const { return pages_ + page() - size; }

 private:
  static std::size_t page() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

  std::uint8_t* pages_ =
      static_cast<std::uint8_t*>(::mmap(nullptr, 2 * page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
};

// A kernel that reads or writes beyond the end crashes this test.
TEST(Kernels, TouchNothingBeyondTheEnd) {
  const Fenced dst;
  const Fenced a;
  const Fenced b;
  const Fenced c;
  for_each_kernel([&](const Type& type, ReduceOp /*op*/, Reduce kernel, Inputs& /*inputs*/) {
    for (std::size_t count = 0; count <= kFew; ++count) {
      const std::size_t size = count * type.size();
      const std::array<const void*, 3> sources{a.last(size), b.last(size), c.last(size)};
      for (const std::size_t number : {1, 2, 3}) {
        kernel(dst.last(size), sources.data(), number, count);
      }
    }
  });
}

// --- examples, which show that the reference is right, too ---------------------------------------

// Reduces sources of one value each. Every source has the value many times, so that the vectorised
// part of a kernel computes it, too.
template <typename T>
std::vector<T> reduce(DataType type, ReduceOp op, const std::vector<T>& values, InstructionSet set) {
  constexpr std::size_t kCopies = 67;
  EXPECT_EQ(size_of(type), sizeof(T));
  std::vector<std::vector<T>> arrays;
  std::vector<const void*> sources;
  arrays.reserve(values.size());
  for (const T& value : values) {
    sources.push_back(arrays.emplace_back(kCopies, value).data());
  }
  std::vector<T> result(kCopies);
  reduce_kernel(type, op, set)(result.data(), sources.data(), sources.size(), kCopies);
  return result;
}

template <typename T>
void expect(DataType type, ReduceOp op, const std::vector<T>& values, const T& expected) {
  using Bits = std::array<std::uint8_t, sizeof(T)>;
  for (const InstructionSet set : instruction_sets()) {
    for (const T& result : reduce(type, op, values, set)) {
      ASSERT_EQ(std::bit_cast<Bits>(result), std::bit_cast<Bits>(expected))
          << all_types()[static_cast<std::size_t>(type)].name << " " << op_name(op) << " with instruction set "
          << static_cast<int>(set) << ": " << testing::PrintToString(result) << ", not " << testing::PrintToString(expected);
    }
  }
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint16_t half(float value) { return Float16::narrow(value); }

TEST(KernelExamples, SourcesAreReducedInTheirOrder) {
  expect<float>(DataType::float32, ReduceOp::sum, {1e8F, 1.0F, -1e8F}, 0.0F);
  expect<float>(DataType::float32, ReduceOp::sum, {1e8F, -1e8F, 1.0F}, 1.0F);
  expect<float>(DataType::float32, ReduceOp::product, {1e30F, 1e30F, 1e-30F, 1e-30F}, kInfinity);
  expect<double>(DataType::float64, ReduceOp::sum, {1e16, 1.0, -1e16, 1.0}, 1.0);
  expect<double>(DataType::float64, ReduceOp::average, {1.0, 2.0, 4.0, 8.0}, 3.75);
}

TEST(KernelExamples, NarrowFloatsAreRoundedOnce) {
  expect<std::uint16_t>(DataType::float16, ReduceOp::sum, {half(2048), half(1), half(1), half(1)}, half(2052));
  expect<std::uint16_t>(DataType::float16, ReduceOp::sum, {half(60000), half(60000), half(-60000)}, half(60000));
  expect<std::uint16_t>(DataType::float16, ReduceOp::average, {half(60000), half(60000)}, half(60000));
  expect<std::uint16_t>(DataType::float16, ReduceOp::sum, {half(60000), half(60000)}, half(kInfinity));
  expect<std::uint16_t>(DataType::bfloat16, ReduceOp::sum, {BFloat16::narrow(256), BFloat16::narrow(1), BFloat16::narrow(1)},
                        BFloat16::narrow(258));
  expect<std::uint8_t>(DataType::float8_e5m2, ReduceOp::sum,
                       {Float8E5m2::narrow(8), Float8E5m2::narrow(1), Float8E5m2::narrow(1)}, Float8E5m2::narrow(10));
}

TEST(KernelExamples, OverflowOfFloat8DependsOnTheFormat) {
  const std::uint8_t large = 0x7e;  // 448
  const std::uint8_t negative = 0xfe;
  expect<std::uint8_t>(DataType::float8_e4m3fn, ReduceOp::sum, {large, large}, 0x7f);
  expect<std::uint8_t>(DataType::float8_e4m3fn, ReduceOp::sum, {negative, negative}, 0x7f);
  expect<std::uint8_t>(DataType::float8_e4m3fn_saturating, ReduceOp::sum, {large, large}, large);
  expect<std::uint8_t>(DataType::float8_e4m3fn_saturating, ReduceOp::sum, {negative, negative}, negative);
  expect<std::uint8_t>(DataType::float8_e4m3fnuz, ReduceOp::sum, {0x7f, 0x7f}, 0x80);
  expect<std::uint8_t>(DataType::float8_e5m2, ReduceOp::sum, {0x7b, 0x7b}, 0x7c);
  expect<std::uint8_t>(DataType::float8_e8m0fnu, ReduceOp::sum, {0xfe, 0xfe}, 0xff);
  expect<std::uint8_t>(DataType::float8_e8m0fnu, ReduceOp::sum, {127, 127}, 128);
}

TEST(KernelExamples, EveryNanIsTheSame) {
  for (const std::uint32_t nan : {0x7f800001U, 0x7fc12345U, 0xff812345U, 0xffffffffU}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max, ReduceOp::average}) {
      expect<std::uint32_t>(DataType::float32, op, {nan, 0x3f800000}, 0x7fc00000);
      expect<std::uint32_t>(DataType::float32, op, {0xbf800000, nan}, 0x7fc00000);
      expect<std::uint32_t>(DataType::float32, op, {0, nan, 0xff800000, 0x7f800000}, 0x7fc00000);
    }
  }
  expect<float>(DataType::float32, ReduceOp::sum, {kInfinity, -kInfinity}, kNan);
  expect<float>(DataType::float32, ReduceOp::product, {kInfinity, 0.0F}, kNan);
  expect<std::uint64_t>(DataType::float64, ReduceOp::max, {0xfff0000000000001, 0}, 0x7ff8000000000000);
  expect<std::uint16_t>(DataType::float16, ReduceOp::min, {0xfc01, 0}, 0x7e00);
  expect<std::uint16_t>(DataType::bfloat16, ReduceOp::sum, {0x7f80, 0xff80}, 0x7fc0);
  expect<std::uint8_t>(DataType::float8_e4m3fn, ReduceOp::max, {0xff, 0}, 0x7f);
}

TEST(KernelExamples, OneSourceIsCopied) {
  expect<std::uint32_t>(DataType::float32, ReduceOp::sum, {0xff812345}, 0xff812345);
  expect<std::uint16_t>(DataType::float16, ReduceOp::average, {0xfc01}, 0xfc01);
}

TEST(KernelExamples, NegativeZeroIsBelowZero) {
  expect<float>(DataType::float32, ReduceOp::min, {0.0F, -0.0F}, -0.0F);
  expect<float>(DataType::float32, ReduceOp::min, {-0.0F, 0.0F}, -0.0F);
  expect<float>(DataType::float32, ReduceOp::max, {-0.0F, 0.0F}, 0.0F);
  expect<double>(DataType::float64, ReduceOp::max, {0.0, -0.0}, 0.0);
  expect<std::uint16_t>(DataType::bfloat16, ReduceOp::min, {0, 0x8000, 0}, 0x8000);
  expect<float>(DataType::float32, ReduceOp::max, {-2.0F, -kInfinity, -1.0F}, -1.0F);
  expect<float>(DataType::float32, ReduceOp::min, {-2.0F, kInfinity, -1.0F}, -2.0F);
}

TEST(KernelExamples, IntegersWrap) {
  expect<std::uint8_t>(DataType::uint8, ReduceOp::sum, {200, 100}, 44);
  expect<std::int8_t>(DataType::int8, ReduceOp::sum, {127, 1}, -128);
  expect<std::uint16_t>(DataType::uint16, ReduceOp::product, {65535, 65535}, 1);
  expect<std::int32_t>(DataType::int32, ReduceOp::product, {65536, 65537}, 65536);
  expect<std::int64_t>(DataType::int64, ReduceOp::sum, {std::numeric_limits<std::int64_t>::max(), 2},
                       std::numeric_limits<std::int64_t>::min() + 1);
}

TEST(KernelExamples, AveragesOfIntegersAreTruncated) {
  expect<std::int8_t>(DataType::int8, ReduceOp::average, {-3, -4}, -3);
  expect<std::int8_t>(DataType::int8, ReduceOp::average, {127, 127, 126}, 126);
  expect<std::uint8_t>(DataType::uint8, ReduceOp::average, {255, 254}, 254);
  expect<std::uint32_t>(DataType::uint32, ReduceOp::average, {4294967295, 4294967295, 4294967294}, 4294967294);
  expect<std::int32_t>(DataType::int32, ReduceOp::average, {-2147483647 - 1, -2147483647 - 1}, -2147483647 - 1);
  expect<std::int64_t>(DataType::int64, ReduceOp::average, {-3, -4}, -3);
  expect<std::uint64_t>(DataType::uint64, ReduceOp::average, {std::uint64_t{1} << 63U, 1}, std::uint64_t{1} << 62U);
}

TEST(KernelExamples, IntegersAreOrderedWithTheirSign) {
  expect<std::int8_t>(DataType::int8, ReduceOp::min, {5, -128, 127}, -128);
  expect<std::uint8_t>(DataType::uint8, ReduceOp::min, {5, 128, 127}, 5);
  expect<std::int64_t>(DataType::int64, ReduceOp::max, {-1, -2}, -1);
  expect<std::uint64_t>(DataType::uint64, ReduceOp::max, {1, ~std::uint64_t{0}}, ~std::uint64_t{0});
  expect<std::int32_t>(DataType::int32, ReduceOp::bit_and, {-1, 0x0ff0, 0x00ff}, 0x00f0);
  expect<std::int32_t>(DataType::int32, ReduceOp::bit_or, {1, 2, 2}, 3);
  expect<std::int32_t>(DataType::int32, ReduceOp::bit_xor, {1, 3, 4}, 6);
}

TEST(KernelExamples, ComplexNumbersAreMultiplied) {
  using Float = std::array<float, 2>;
  expect<Float>(DataType::complex_float, ReduceOp::product, {{1, 2}, {3, 4}}, {-5, 10});
  expect<Float>(DataType::complex_float, ReduceOp::product, {{1, 2}, {3, 4}, {0, 1}}, {-10, -5});
  expect<Float>(DataType::complex_float, ReduceOp::sum, {{1, 2}, {3, 4}}, {4, 6});
  expect<Float>(DataType::complex_float, ReduceOp::average, {{1, 2}, {3, 4}}, {2, 3});
  expect<Float>(DataType::complex_float, ReduceOp::average, {{1, kInfinity}, {3, 4}}, {kNan, kInfinity});
  expect<std::array<std::uint16_t, 2>>(DataType::complex_half, ReduceOp::product, {{half(1), half(2)}, {half(3), half(4)}},
                                       {half(-5), half(10)});
}

// The square of `near` is not a float32. A fused multiply-add would not round it, and the
// difference to the other, rounded square would not be 0.
TEST(KernelExamples, ComplexProductsAreNotFused) {
  const float near = 1.0F + 1.0F / 8192;
  const float square = 1.0F + 2.0F / 8192;
  expect<std::array<float, 2>>(DataType::complex_float, ReduceOp::product, {{near, near}, {near, near}}, {0, 2 * square});
  expect<std::array<float, 2>>(DataType::complex_float, ReduceOp::product, {{1, 0}, {near, near}, {near, near}}, {0, 2 * square});
  const double wide = 1.0 + std::ldexp(1.0, -27);
  const double wide_square = 1.0 + std::ldexp(1.0, -26);
  expect<std::array<double, 2>>(DataType::complex_double, ReduceOp::product, {{wide, wide}, {wide, wide}}, {0, 2 * wide_square});
}

}  // namespace
}  // namespace torch_ucc::shm
