#include "bootstrap/packed.h"

#include <zlib.h>

#include <charconv>
#include <cstddef>
#include <string_view>
#include <system_error>

#include "base/named_values.h"
#include "base/status.h"

namespace torch_ucc {
namespace {

constexpr char kEnd = '\n';  // after each number
// zlib's documentation: one byte expands to 1032 bytes at most
constexpr std::size_t kMostExpanded = 1100;

void append_number(std::string& text, std::size_t number) {
  text += std::to_string(number);
  text += kEnd;
}

// Removes a number from the front of `text` and returns it.
std::size_t take_number(std::string_view& text) {
  std::size_t number = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  if (error != std::errc() || end == last || *end != kEnd) {
    refuse_published();
  }
  text.remove_prefix(static_cast<std::size_t>(end + 1 - text.data()));
  return number;
}

}  // namespace

std::string pack(const std::vector<std::string>& values) {
  std::string plain;
  for (const std::string& value : values) {
    append_number(plain, value.size());
    plain += value;
  }
  std::string text;
  append_number(text, plain.size());
  const std::size_t front = text.size();
  uLongf size = compressBound(plain.size());
  text.resize(front + size);
  const int result = compress2(reinterpret_cast<Bytef*>(text.data() + front), &size, reinterpret_cast<const Bytef*>(plain.data()),
                               plain.size(), Z_BEST_SPEED);
  if (result != Z_OK) {
    throw StatusError(Status(StatusCode::transport, "zlib could not pack the values of ranks: " + std::to_string(result)));
  }
  text.resize(front + size);
  return text;
}

std::vector<std::string> unpack(const std::string& text) {
  std::string_view packed = text;
  const std::size_t size = take_number(packed);
  if (size / kMostExpanded > packed.size()) {
    refuse_published();
  }
  std::string plain(size, '\0');
  uLongf filled = size;
  const int result =
      uncompress(reinterpret_cast<Bytef*>(plain.data()), &filled, reinterpret_cast<const Bytef*>(packed.data()), packed.size());
  if (result != Z_OK || filled != size) {
    refuse_published();
  }
  std::vector<std::string> values;
  for (std::string_view left = plain; !left.empty();) {
    const std::size_t length = take_number(left);
    if (length > left.size()) {
      refuse_published();
    }
    values.emplace_back(left.substr(0, length));
    left.remove_prefix(length);
  }
  return values;
}

}  // namespace torch_ucc
