// One message between this process and another, on its way through a carrier.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>

#include "base/status.h"

namespace torch_ucc {

// The type of device memory that a carrier works on directly, as a number that the carrier gave it.
using MessageMemory = int;

struct Message {
  enum class Kind : unsigned char { send, receive };
  static constexpr int kAnyRank = -1;

  Kind kind = Kind::send;
  int peer = 0;          // rank of the group; kAnyRank for a receive from the rank that sends first
  void* data = nullptr;  // `bytes` of it
  std::size_t bytes = 0;
  bool is_callers = true;  // false: the memory belongs to the operation, and needs no lease
  // Empty for host memory. A carrier never sees that memory: data is copied within a Use of the
  // operation's lease. Otherwise a type that UcxWorker::memory_type() returned: UCX works on the
  // memory itself, which must live until the operation is destroyed.
  std::optional<MessageMemory> direct{};
};

class Carrier;
class LoopToken;
class Messages;

// A carrier keeps the address of a parcel until it has called ended(), which it does once. Used with
// the baton, except where noted.
class Parcel {
 public:
  Parcel(Messages& op, const Message& message) : op_(op), message_(message) {}
  // Only before it is posted
  Parcel(Parcel&& other) noexcept : op_(other.op_), message_(other.message_) {}
  Parcel& operator=(Parcel&&) = delete;
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;

  const Message& message() const { return message_; }
  std::size_t bytes() const { return message_.bytes; }
  bool receives() const { return message_.kind == Message::Kind::receive; }
  bool is_from_any() const { return message_.peer == Message::kAnyRank; }

  // Copies `bytes` bytes of the message, from `offset` on, to the carrier's memory. Returns false if
  // the caller has its memory back, and there is no copy to send from.
  bool pack(std::size_t offset, void* to, std::size_t bytes);
  // Copies data that has arrived to the memory of the message. Drops data for which there is no room,
  // and all data once the caller has its memory back.
  void unpack(std::size_t offset, const void* from, std::size_t bytes);

  // Says that `carrier` has the parcel now, and counts it as outstanding there until it ends, or until
  // another carrier has it.
  void begin(LoopToken& token, Carrier& carrier);
  // Only between begin() and ended()
  Carrier& carrier() const { return *carrier_; }
  // Says how the message ended. For a receive that got a message: `source` is the rank of the group
  // that sent it, and `length` is its size.
  void ended(const Status& status, int source = Message::kAnyRank, std::size_t length = 0);
  // Any thread.
  bool has_ended() const { return ended_.load(std::memory_order_relaxed); }

  // Copies what is to be sent from the caller's memory, unless that was done. By a thread that holds
  // the lease or revokes it.
  void make_copy();

  // For the carrier
  void* handle = nullptr;
  std::array<char, 32> small{};

 private:
  Messages& op_;
  const Message message_;
  Carrier* carrier_ = nullptr;
  std::atomic<bool> ended_{false};
  std::unique_ptr<char[]> copy_{};  // what is sent instead of the caller's memory, if not null
};

}  // namespace torch_ucc
