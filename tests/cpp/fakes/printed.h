// What a library prints to a stream.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace torch_ucc {

template <typename Print>
std::string printed(Print print) {
  char* text = nullptr;
  std::size_t length = 0;
  std::FILE* const stream = ::open_memstream(&text, &length);
  print(stream);
  std::fclose(stream);
  std::string copy(text, length);
  std::free(text);  // NOLINT: open_memstream allocates so
  return copy;
}

}  // namespace torch_ucc
