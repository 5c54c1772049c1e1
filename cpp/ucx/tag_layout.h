// How a message is told from every other one on a worker: the 64 bits that UCX matches.
//
//   space 1 | group 15 | source rank 16 | tag 32
//
// The space keeps what users send apart from what collectives send, so any 32-bit tag is free for
// users. Groups have ids of their own that are never used twice on a context, so a late message of
// an old group matches nothing.
#pragma once

#include <cstdint>

namespace torch_ucc {

enum class Space : std::uint8_t { user = 0, collective = 1 };

struct TagLayout {
  static constexpr int kMaxRanks = 1 << 16;
  static constexpr int kMaxGroup = (1 << 15) - 1;
  static constexpr std::uint16_t kNotes = 0;  // in place of a group: what is said to a process, see UcxWorker::take_note()

  static constexpr std::uint64_t kExact = ~std::uint64_t{0};
  static constexpr std::uint64_t kAnySource = ~(std::uint64_t{kMaxRanks - 1} << 32U);

  static constexpr std::uint64_t pack(Space space, std::uint16_t group, int source, std::uint32_t tag) {
    return static_cast<std::uint64_t>(space) << 63U | static_cast<std::uint64_t>(group) << 48U |
           static_cast<std::uint64_t>(source) << 32U | tag;
  }
  static constexpr int source_of(std::uint64_t packed) { return static_cast<int>((packed >> 32U) & (kMaxRanks - 1)); }
};

}  // namespace torch_ucc
