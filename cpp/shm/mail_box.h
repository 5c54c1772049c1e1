// The way of messages from one process to one neighbour: lines and data in memory that only the
// sender writes.
//
// Line n says what is sent, and holds up to MailLine::kSmall bytes of it; longer data lies in a ring
// beside the lines. The writer stores n + 1 in MailLine::stamp (release) when line and data are
// complete, and the reader waits for that number (acquire). In its own box for the writer, the
// reader counts the lines that it has taken, so that the writer may use them and their data again.
// Where data lies follows from the lengths of all data before it, so both sides compute the place.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace torch_ucc::shm {

// A peer's line may hold anything: what it says is compared, and never used as an address or a
// length without a check.
struct alignas(128) MailLine {
  static constexpr std::size_t kSmall = 88;

  enum class Kind : std::uint32_t {
    whole,     // the first data of a message, which is sent without being asked for
    offer,     // a message of which no data is sent until the receiver has accepted it
    more,      // further data of a message
    accept,    // from the receiver of an offer: send it
    decline,   // from the receiver of an offer: it has no use for the message, or not any more
    withdraw,  // the sender sends no more of the message
  };

  std::atomic<std::uint64_t> stamp{0};  // the number of the line, plus one
  std::uint64_t tag = 0;                // whole, offer
  std::uint64_t bytes = 0;              // whole, offer: of the message
  std::uint32_t length = 0;             // whole, more: of the data that comes with this line
  std::uint32_t message = 0;            // the number of the message among those of its sender to its receiver
  Kind kind = Kind::whole;
  std::uint32_t unused = 0;
  std::array<std::byte, kSmall> small{};
};
static_assert(sizeof(MailLine) == 128 && std::atomic<std::uint64_t>::is_always_lock_free);

// Zeroed memory is a box from which nothing was sent.
struct MailBox {
  static constexpr std::uint64_t kLines = 128;
  static constexpr std::size_t kData = std::size_t{256} << 10U;
  static constexpr std::size_t kPage = 4096;

  // About what the neighbour sends to the owner of this box:
  alignas(128) std::atomic<std::uint64_t> taken{0};   // lines that the owner has taken
  std::atomic<std::uint64_t> settled{0};              // bytes of messages without offer that the owner keeps no more
  alignas(128) std::array<MailLine, kLines> lines{};  // the data follows, in pages of its own

  static constexpr std::size_t data_offset() { return (sizeof(MailBox) + kPage - 1) / kPage * kPage; }
  static constexpr std::size_t total_bytes() { return data_offset() + kData; }
  char* data() { return reinterpret_cast<char*>(this) + data_offset(); }
  const char* data() const { return reinterpret_cast<const char*>(this) + data_offset(); }

  // Where data of `length` bytes lies in the ring, if all data before it ends at `end`. Positions
  // count from the first byte that was ever sent. Data begins at a cache line, and never crosses the
  // end of the ring.
  static constexpr std::uint64_t place(std::uint64_t end, std::size_t length) {
    constexpr std::uint64_t kAligned = 64;
    const std::uint64_t begin = (end + kAligned - 1) / kAligned * kAligned;
    return begin % kData + length > kData ? (begin / kData + 1) * kData : begin;
  }
};

// Writes to the own box for one neighbour.
class MailWriter {
 public:
  // `theirs` is the box of the neighbour for this process.
  MailWriter(MailBox& mine, const MailBox& theirs) : mine_(mine), theirs_(theirs) {}

  // Returns where the next line's data of `length` bytes may be written, which is at most
  // MailBox::kData / 2; null if there is no room yet, for data or line.
  char* room(std::size_t length) {
    if (next_ - taken() >= MailBox::kLines) {
      return nullptr;
    }
    if (length <= MailLine::kSmall) {
      return reinterpret_cast<char*>(line().small.data());
    }
    const std::uint64_t begin = MailBox::place(end_, length);
    if (begin + length - freed_ > MailBox::kData) {
      return nullptr;
    }
    return mine_.data() + begin % MailBox::kData;
  }

  // Sends the next line. The data is where room(length) has said.
  void put(MailLine::Kind kind, std::uint32_t message, std::uint64_t tag, std::uint64_t bytes, std::size_t length) {
    MailLine& line = this->line();
    line.tag = tag;
    line.bytes = bytes;
    line.length = static_cast<std::uint32_t>(length);
    line.message = message;
    line.kind = kind;
    if (length > MailLine::kSmall) {
      end_ = MailBox::place(end_, length) + length;
    }
    ends_[next_ % MailBox::kLines] = end_;
    ++next_;
    line.stamp.store(next_, std::memory_order_release);
  }

  // Bytes of messages without offer that the reader keeps no more.
  std::uint64_t settled() const { return theirs_.settled.load(std::memory_order_acquire); }

 private:
  MailLine& line() { return mine_.lines[next_ % MailBox::kLines]; }
  // A count that cannot be is ignored: then the peer harms nobody but itself.
  std::uint64_t taken() {
    const std::uint64_t taken = theirs_.taken.load(std::memory_order_acquire);
    if (taken > taken_ && taken <= next_) {
      taken_ = taken;
      freed_ = ends_[(taken - 1) % MailBox::kLines];
    }
    return taken_;
  }

  MailBox& mine_;
  const MailBox& theirs_;
  std::uint64_t next_ = 0;                             // the number of the next line
  std::uint64_t end_ = 0;                              // where the data of all lines ends
  std::uint64_t taken_ = 0;                            // lines that may be written again
  std::uint64_t freed_ = 0;                            // where their data ends
  std::array<std::uint64_t, MailBox::kLines> ends_{};  // by line: where its data ends
};

// Reads the box of one neighbour for this process.
class MailReader {
 public:
  MailReader(MailBox& mine, const MailBox& theirs) : mine_(mine), theirs_(theirs) {}

  // A line with its data, which stay valid until take(). The line is a copy, so it does not change
  // after it was checked.
  struct Letter {
    MailLine::Kind kind;
    std::uint32_t message;
    std::uint64_t tag;
    std::uint64_t bytes;
    std::size_t length;
    const char* data;
  };

  // Whether the next line is there.
  bool has_next() const { return line().stamp.load(std::memory_order_acquire) == next_ + 1; }
  // Only if has_next(). `is_sound` is false if the line says what no line may say.
  Letter next(bool& is_sound) const {
    const MailLine& line = this->line();
    Letter letter{line.kind, line.message, line.tag, line.bytes, line.length, nullptr};
    is_sound = letter.kind <= MailLine::Kind::withdraw && letter.length <= MailBox::kData / 2 &&
               (letter.kind == MailLine::Kind::whole || letter.kind == MailLine::Kind::more || letter.length == 0);
    if (letter.length <= MailLine::kSmall) {
      letter.data = reinterpret_cast<const char*>(line.small.data());
    } else if (is_sound) {
      letter.data = theirs_.data() + MailBox::place(end_, letter.length) % MailBox::kData;
    }
    return letter;
  }
  // Gives the line back, after `letter` was read. Returns whether the writer may be waiting for that.
  bool take(const Letter& letter) {
    if (letter.length > MailLine::kSmall) {
      end_ = MailBox::place(end_, letter.length) + letter.length;
    }
    ++next_;
    mine_.taken.store(next_, std::memory_order_release);
    return letter.length > MailLine::kSmall || next_ % (MailBox::kLines / 2) == 0;
  }
  // Says that so many bytes are no longer kept.
  void settle(std::uint64_t bytes) {
    settled_ += bytes;
    mine_.settled.store(settled_, std::memory_order_release);
  }

 private:
  const MailLine& line() const { return theirs_.lines[next_ % MailBox::kLines]; }

  MailBox& mine_;
  const MailBox& theirs_;
  std::uint64_t next_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t settled_ = 0;
};

}  // namespace torch_ucc::shm
