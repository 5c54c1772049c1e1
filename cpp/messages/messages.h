// One operation made of messages to and from ranks of a group: a send, a receive, or a collective
// that only moves data.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "messages/channel.h"
#include "messages/parcel.h"
#include "progress/op.h"

namespace torch_ucc {

// Returns the messages of the next round, after all messages of the operation have ended well. An
// empty list ends the operation. Called with the baton, so it must neither block nor send. Throws
// StatusError to fail the operation.
using NextRound = std::function<std::vector<Message>()>;

// Messages from one sender with one tag are received in the order in which they were sent. If a
// message and the receive that it matches differ in size, the receive fails (StatusCode::invalid),
// and nothing else in the group does. An operation has at most kWindow messages in flight, in the
// order of the list, so that the many peers of a large group flood neither memory nor the network.
class Messages : public Op {
 public:
  static constexpr std::size_t kWindow = 64;

  Messages(std::shared_ptr<Channel> channel, Space space, std::uint32_t tag, const std::vector<Message>& messages,
           NextRound next_round = {});

  Status start(LoopToken& token) override;
  State poll(LoopToken& token) final;
  Status transport_status() const final { return status_; }
  bool is_announced() const final { return announced_; }
  microseconds patience() const final;
  Need need_of(const Loss& loss) const override;
  bool detach_inputs() override;
  bool can_detach_inputs() const override { return !direct_ && !next_round_; }
  void cancel(LoopToken& token) final;
  bool is_drained(LoopToken& token) final;
  FailureDomain& domain() const final { return channel_->domain(); }

  int source() const final { return source_; }  // of the last receive

 protected:
  void on_taken_back(After after) noexcept override;
  // Whether the carrier works on memory that is not the host's.
  bool is_direct() const { return direct_; }

 private:
  friend class Parcel;

  // Whether the transport failed. A message of a wrong size does not stop the other messages,
  // because peers wait for them.
  bool broken() const { return status_.code() == StatusCode::transport; }
  void begin(const std::vector<Message>& messages);
  bool may_touch_memory();
  void begin_next_round();
  void post_more(LoopToken& token);
  void post(LoopToken& token, Parcel& parcel);
  void ended(const Parcel& parcel, const Status& status, int source, std::size_t length);
  void fail(Status status);

  const std::shared_ptr<Channel> channel_;
  const Space space_;
  const std::uint32_t tag_;
  const NextRound next_round_;
  // Of this round; the carrier has their addresses while messages are in flight
  std::vector<Parcel> parcels_;
  std::atomic<std::size_t> posted_{0};  // read by the thread that takes the memory back
  std::size_t ended_ = 0;
  std::size_t copied_ = 0;  // how many parts of messages were copied from or to the carrier
  std::size_t seen_ = 0;    // posted_ + ended_ + copied_ at the last poll, to see progress
  std::size_t bytes_ = 0;
  bool announced_ = true;
  bool direct_ = false;
  int source_ = Message::kAnyRank;
  Status status_;
};

}  // namespace torch_ucc
