#include "shm/movement.h"

#include <array>
#include <cstring>

namespace torch_ucc::shm {
namespace {

constexpr std::array<const char*, 9> kKinds{"barrier",    "broadcast",  "all_gather", "gather",        "scatter",
                                            "all_to_all", "all_reduce", "reduce",     "reduce_scatter"};
constexpr std::array<const char*, kDataTypes> kTypes{
    "uint8",           "int8",        "uint16",          "int16",          "uint32",    "int32",         "uint64",
    "int64",           "float16",     "bfloat16",        "float32",        "float64",   "float8_e4m3fn", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "complex32", "complex64",     "complex128"};
constexpr std::array<const char*, kReduceOps> kOps{"SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG"};

template <typename Names>
std::string name_in(const Names& names, std::uint64_t index) {
  return index < names.size() ? names[index] : "an unknown value";
}

bool has_root(std::uint64_t kind) {
  using Kind = Movement::Kind;
  const auto is = [kind](Kind one) { return kind == static_cast<std::uint64_t>(one); };
  return is(Kind::broadcast) || is(Kind::gather) || is(Kind::scatter) || is(Kind::reduce);
}

}  // namespace

std::unique_ptr<char[]> Parts::replace_by_copy() {
  auto copy = std::make_unique_for_overwrite<char[]>(bytes());
  char* to = copy.get();
  for (Part& part : all()) {
    if (part.bytes != 0) {
      std::memcpy(to, part.data, part.bytes);
    }
    part.data = to;
    to += part.bytes;
  }
  return copy;
}

std::string describe_call(std::uint64_t call, std::uint64_t bytes) {
  const std::uint64_t kind = call & 0xffU;
  const std::uint64_t part_of = call >> 24U & 0xffU;
  std::string text = part_of == 0 ? "" : "a part of " + name_in(kKinds, part_of - 1) + ", ";
  text += name_in(kKinds, kind) + " of " + std::to_string(bytes) + " bytes";
  if (kind >= static_cast<std::uint64_t>(Movement::Kind::all_reduce)) {
    text += " of " + name_in(kTypes, call >> 16U & 0xffU) + ", " + name_in(kOps, call >> 8U & 0xffU);
  }
  const std::uint64_t last = call >> 32U;
  if (part_of != 0) {
    text += ", hash of sizes and root ";
  } else if (kind == static_cast<std::uint64_t>(Movement::Kind::reduce_scatter)) {
    text += ", hash of sizes ";
  } else if (has_root(kind) || last != 0) {
    text += ", root ";
  } else {
    return text;
  }
  return text + std::to_string(last);
}

}  // namespace torch_ucc::shm
