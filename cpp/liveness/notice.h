// What ranks on different hosts say to each other over a life line: who has ended, and first of all
// who they are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace torch_ucc {

enum class Ending : std::uint8_t {
  left = 1,     // with everybody's agreement: nobody waits for it
  exited,       // of its own accord, while others may count on it
  died,         // its process ended without a word
  reset,        // its side of a connection answers that there is none: its process ended, or the connection was lost long ago
  unreachable,  // nothing is heard from its host any more
};

struct Notice {
  std::uint64_t peer = 0;
  Ending how = Ending::died;

  static constexpr std::size_t kBytes = 16;
  std::string encode() const;
  // Nothing if these kBytes are not what encode() makes.
  static std::optional<Notice> decode(std::string_view bytes);
};

// Known to the ranks of a job only, through its store: who connects shows the first half, who
// accepts answers with the second.
struct Secret {
  static constexpr std::size_t kHalf = 16;
  std::string knock;   // kHalf bytes
  std::string answer;  // kHalf bytes

  static Secret random();
};

// The first bytes of who connects.
struct Hello {
  std::string knock;
  std::uint64_t from = 0;

  static constexpr std::size_t kBytes = 32;
  std::string encode() const;
  static std::optional<Hello> decode(std::string_view bytes);
};

// Where a rank listens: text for the store.
struct LineAddress {
  Secret secret;
  std::uint16_t port = 0;
  // Numeric, IPv4 or IPv6: each of the host's, since only who connects can tell which of them leads
  // there.
  std::string hosts;  // separated by spaces

  std::string encode() const;
  // Nothing if the text is not what encode() makes.
  static std::optional<LineAddress> decode(const std::string& text);
};

// Takes the same time wherever the two differ.
bool equal_secrets(std::string_view a, std::string_view b);

}  // namespace torch_ucc
