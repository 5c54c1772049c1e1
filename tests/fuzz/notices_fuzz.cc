// What comes over a life line, and where one is found.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "liveness/notice.h"

namespace {

template <typename Value, typename Bytes>
void comes_back(const Bytes& bytes) {
  if (const auto value = Value::decode(bytes); value && Value::decode(value->encode())->encode() != value->encode()) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  comes_back<torch_ucc::Notice>(std::string_view(bytes));
  comes_back<torch_ucc::Hello>(std::string_view(bytes));
  comes_back<torch_ucc::LineAddress>(bytes);
  return 0;
}
