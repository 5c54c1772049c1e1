// One operation made of messages to and from ranks of a group: a send, a receive, or a collective
// that only moves data.
#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "progress/op.h"
#include "ucx/channel.h"

namespace torch_ucc {

struct Message {
  enum class Kind : unsigned char { send, receive };
  static constexpr int kAnyRank = -1;

  Kind kind = Kind::send;
  int peer = 0;          // rank of the group; kAnyRank for a receive from the rank that sends first
  void* data = nullptr;  // `bytes` of it
  std::size_t bytes = 0;
  bool is_callers = true;  // false: the memory belongs to the operation, and needs no lease
  // Empty for host memory. UCX never sees that memory: data is copied within a Use of the
  // operation's lease. Otherwise a type that UcxWorker::memory_type() returned: UCX works on the
  // memory itself, which must live until the operation is destroyed.
  std::optional<ucs_memory_type_t> direct{};
};

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
  // Whether UCX works on memory that is not the host's.
  bool is_direct() const { return direct_; }

 private:
  // One message: UCX's callbacks find it by its address.
  struct Slot {
    Messages* op;
    Message message;
    void* request = nullptr;  // UCX's, of a receive that is in flight
    std::atomic<bool> ended{false};
    std::unique_ptr<char[]> copy{};  // what is sent instead of the caller's memory, if not null
    std::array<char, 32> small{};    // what is sent or received, if it is host memory and fits

    Slot(Messages* messages, const Message& one) : op(messages), message(one) {}
    // Only before it is posted
    Slot(Slot&& other) noexcept : op(other.op), message(other.message) {}
    void make_copy();
  };
  struct Copier;  // UCX's callbacks that copy

  static void sent(void* request, ucs_status_t status, void* slot);
  static void received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* slot);

  // Whether the transport failed. A message of a wrong size does not stop the other messages,
  // because peers wait for them.
  bool broken() const { return status_.code() == StatusCode::transport; }
  void begin(const std::vector<Message>& messages);
  bool may_touch_memory();
  void begin_next_round();
  void post_more(LoopToken& token);
  void post(LoopToken& token, Slot& slot);
  void ended(Slot& slot, ucs_status_t status, const ucp_tag_recv_info_t* info);
  void fail(Status status);

  const std::shared_ptr<Channel> channel_;
  const Space space_;
  const std::uint32_t tag_;
  const NextRound next_round_;
  // Of this round; UCX has their addresses while messages are in flight
  std::vector<Slot> slots_;
  std::atomic<std::size_t> posted_{0};  // read by the thread that takes the memory back
  std::size_t ended_ = 0;
  std::size_t copied_ = 0;  // how many parts of messages were copied from or to UCX
  std::size_t seen_ = 0;    // posted_ + ended_ + copied_ at the last poll, to see progress
  std::size_t bytes_ = 0;
  bool announced_ = true;
  bool direct_ = false;
  int source_ = Message::kAnyRank;
  Status status_;
};

// Ends when everything that this process has sent has reached its peers. All processes must do this
// before a worker is destroyed.
class FlushWorker final : public Op {
 public:
  FlushWorker(UcxWorker& worker, FailureDomain& domain) : worker_(worker), domain_(domain) {}

  Status start(LoopToken& token) override;
  State poll(LoopToken& token) override;
  Status transport_status() const override { return status_; }
  FailureDomain& domain() const override { return domain_; }
  std::string describe() const override { return "sending what was left before closing"; }

 private:
  UcxWorker& worker_;
  FailureDomain& domain_;
  void* request_ = nullptr;
  Status status_;
};

}  // namespace torch_ucc
