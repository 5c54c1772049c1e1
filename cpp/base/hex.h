// Bytes as hexadecimal text, for formats in which a byte could be taken for a separator.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace torch_ucc {

inline std::string to_hex(std::string_view bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4U];
    text += kDigits[static_cast<unsigned char>(byte) & 15U];
  }
  return text;
}

// Returns nothing if the text is not a sequence of pairs of hexadecimal digits.
inline std::optional<std::string> from_hex(std::string_view text) {
  if (text.size() % 2 != 0) {
    return std::nullopt;
  }
  std::string bytes;
  bytes.reserve(text.size() / 2);
  for (std::size_t i = 0; i < text.size(); i += 2) {
    unsigned byte = 0;
    if (const auto [end, error] = std::from_chars(text.data() + i, text.data() + i + 2, byte, 16);
        error != std::errc() || end != text.data() + i + 2) {
      return std::nullopt;
    }
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

}  // namespace torch_ucc
