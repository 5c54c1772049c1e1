// What ranks send each other over a life line: first a greeting with a secret, later notices of
// ranks that ended.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace torch_ucc {

enum class Ending : std::uint8_t {
  left = 1,  // closed in agreement with all ranks: no rank waits for it
  exited,    // ended on purpose, while other ranks may still wait for it
  died,      // its process ended without a notice
  // Its host reset the connection: its process ended, or the connection was lost long ago
  reset,
  unreachable,  // its host does not answer any more
};

struct Notice {
  std::uint64_t peer = 0;
  Ending how = Ending::died;

  static constexpr std::size_t kBytes = 16;
  std::string encode() const;
  // Returns nothing if `bytes` are not kBytes that encode() makes.
  static std::optional<Notice> decode(std::string_view bytes);
};

// A secret that only the ranks of a job know, through the job's store. The rank that connects sends
// the first half; the rank that accepts answers with the second half.
struct Secret {
  static constexpr std::size_t kHalf = 16;
  std::string knock;   // kHalf bytes
  std::string answer;  // kHalf bytes

  static Secret random();
};

// The first bytes that the rank which connects sends.
struct Hello {
  std::string knock;
  std::uint64_t from = 0;

  static constexpr std::size_t kBytes = 32;
  static constexpr std::uint64_t kVisitor = ~std::uint64_t{0};  // a program that is no rank
  std::string encode() const;
  // Returns nothing if `bytes` are not kBytes of the form that encode() makes. Does not check
  // `knock`.
  static std::optional<Hello> decode(std::string_view bytes);
};

// Where a rank listens. Ranks publish it as text in the job's store.
struct LineAddress {
  Secret secret;
  std::uint16_t port = 0;
  // Numeric IPv4 or IPv6 addresses of the host, separated by spaces. There are several, since only
  // the rank that connects can find out which of them works.
  std::string hosts;

  std::string encode() const;
  // Throws StatusError (transport) if the text does not have the form that encode() makes.
  static LineAddress decode(const std::string& text);
};

// A number as kNumberBytes, little endian on every host. Decodes the first ones of `bytes`; returns
// nothing if there are fewer.
inline constexpr std::size_t kNumberBytes = 8;
std::string encode_number(std::uint64_t value);
std::optional<std::uint64_t> decode_number(std::string_view bytes);

// Compares in a time that does not depend on where the two differ, so that it reveals nothing of a
// secret.
bool equal_secrets(std::string_view a, std::string_view b);

}  // namespace torch_ucc
