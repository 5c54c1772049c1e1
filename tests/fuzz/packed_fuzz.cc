// The values of several ranks as one of them packs them for all.
#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/packed.h"

namespace {

// Of what zlib takes for well formed, too, which random bytes seldom are.
std::string as_packed(const std::string& plain) {
  uLongf size = compressBound(plain.size());
  std::string packed(size, '\0');
  compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(plain.data()), plain.size());
  packed.resize(size);
  return std::to_string(plain.size()) + '\n' + packed;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace torch_ucc;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  for (const std::string& text : {bytes, as_packed(bytes)}) {
    try {
      const std::vector<std::string> values = unpack(text);
      if (unpack(pack(values)) != values) {
        std::abort();
      }
    } catch (const StatusError&) {  // it says what is wrong
    }
  }
  return 0;
}
