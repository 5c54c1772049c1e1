// What moves messages between processes: UCX, or memory that the processes share.
#pragma once

#include <cstdint>

#include "messages/parcel.h"
#include "progress/loop_token.h"
#include "progress/pollable.h"

namespace torch_ucc {

// How a message ends that its own process has taken back.
inline Status given_up_status() { return {StatusCode::transport, "it was given up"}; }

// A process is named by its position in the context, and a tag is one of TagLayout. A carrier keeps
// the order of the messages that one process sends with one tag. A message and the receive that gets
// it may differ in size.
class Carrier : public CountingPollable {
 public:
  // Begin to send or to receive. If the message ends at once, also with an error, they call
  // Parcel::ended() before they return. receive() gets a message with exactly `tag` from the process
  // at `position`; receive_from_any() ignores the source in the tag.
  virtual void send(LoopToken& token, std::uint64_t position, std::uint64_t tag, Parcel& parcel) = 0;
  virtual void receive(LoopToken& token, std::uint64_t position, std::uint64_t tag, Parcel& parcel) = 0;
  virtual void receive_from_any(LoopToken& token, std::uint64_t tag, Parcel& parcel) = 0;
  // If a message that receive_from_any() would get has arrived already, and no receive has matched it,
  // receives it and returns true. Otherwise does nothing, and returns false.
  virtual bool receive_arrived(LoopToken& token, std::uint64_t tag, Parcel& parcel) = 0;

  // Takes a message of this carrier back that has not ended. The carrier may still have to wait until
  // it can do so.
  virtual void cancel(LoopToken& token, Parcel& parcel) = 0;
  // Whether cancel() ends every send to that process at once, so that nothing need be copied before.
  virtual bool cancels_at_once(std::uint64_t position) const = 0;
};

}  // namespace torch_ucc
