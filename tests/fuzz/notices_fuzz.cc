// What comes over a life line, and where one is found.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/status.h"
#include "liveness/notice.h"

namespace {

template <typename Value>
void comes_back(const std::string& bytes) {
  if (const auto value = Value::decode(bytes); value && Value::decode(value->encode())->encode() != value->encode()) {
    std::abort();
  }
}

void address_comes_back(const std::string& bytes) {
  using torch_ucc::LineAddress;
  try {
    const std::string text = LineAddress::decode(bytes).encode();
    if (LineAddress::decode(text).encode() != text) {
      std::abort();
    }
  } catch (const torch_ucc::StatusError&) {  // it says what is wrong
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  comes_back<torch_ucc::Notice>(bytes);
  comes_back<torch_ucc::Hello>(bytes);
  address_comes_back(bytes);
  return 0;
}
