// The 64 bits by which messages are matched.
//
//   space 1 | group 15 | source rank 16 | tag 32
//
// The space separates the messages of users from those of collectives, so users may use every
// 32-bit tag. A context uses the id of a group only once, so a late message of an old group matches
// no receive.
#pragma once

#include <cstddef>
#include <cstdint>

namespace torch_ucc {

enum class Space : std::uint8_t { user = 0, collective = 1 };

struct TagLayout {
  static constexpr int kMaxRanks = 1 << 16;
  static constexpr int kMaxGroup = (1 << 15) - 1;
  // Instead of a group: notes to a process. A note is a message with the tag note() that no operation
  // receives: see UcxWorker::take_note() and Mail::take_note(). It has at most kMaxNote bytes.
  static constexpr std::uint16_t kNotes = 0;
  static constexpr std::size_t kMaxNote = 4096;

  static constexpr std::uint64_t kExact = ~std::uint64_t{0};
  static constexpr std::uint64_t kAnySource = ~(std::uint64_t{kMaxRanks - 1} << 32U);

  static constexpr std::uint64_t pack(Space space, std::uint16_t group, int source, std::uint32_t tag) {
    return static_cast<std::uint64_t>(space) << 63U | static_cast<std::uint64_t>(group) << 48U |
           static_cast<std::uint64_t>(source) << 32U | tag;
  }
  static constexpr std::uint64_t note() { return pack(Space::collective, kNotes, 0, 0); }
  static constexpr std::uint16_t group_of(std::uint64_t packed) {
    return static_cast<std::uint16_t>((packed >> 48U) & static_cast<std::uint64_t>(kMaxGroup));
  }
  static constexpr int source_of(std::uint64_t packed) { return static_cast<int>((packed >> 32U) & (kMaxRanks - 1)); }
};

}  // namespace torch_ucc
