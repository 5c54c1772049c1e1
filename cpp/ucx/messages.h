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
  // Nothing for memory of the host, which is copied within a Use of the operation's lease, and
  // never seen by UCX. Else a type that UcxWorker::memory_type() knows: UCX works on that memory
  // itself, which must live until the operation was dropped.
  std::optional<ucs_memory_type_t> direct{};
};

// What an operation goes on with once all its messages have ended well: nothing, if that was all.
// Runs with the baton: it neither blocks nor sends. Throws StatusError to end the operation.
using NextRound = std::function<std::vector<Message>()>;

// Messages of one sender with one tag are received in the order in which they were sent. A message
// of another size than the receive that it meets ends the receive with an error (invalid), and
// costs the group nothing else. At most kWindow messages of an operation are under way at once, in
// the order of the list, so that neither memory nor the network is flooded by the many peers of a
// large group.
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
    void* request = nullptr;  // of a receive that is under way
    std::atomic<bool> ended{false};
    std::unique_ptr<char[]> copy{};  // what is sent in place of the caller's memory; within a Use of the lease
    std::array<char, 32> small{};    // what is sent or received, if it fits

    Slot(Messages* messages, const Message& one) : op(messages), message(one) {}
    Slot(Slot&& other) noexcept : op(other.op), message(other.message) {}  // before it is posted
    void make_copy();
  };
  struct Copier;  // UCX's callbacks that copy

  static void sent(void* request, ucs_status_t status, void* slot);
  static void received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* slot);

  // After a message of a wrong size the others are sent all the same: peers wait for them.
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
  std::vector<Slot> slots_;             // of this round; does not move while a message of it is under way
  std::atomic<std::size_t> posted_{0};  // read by the thread that takes the memory back
  std::size_t ended_ = 0;
  std::size_t copied_ = 0;  // parts of messages, from and to UCX
  std::size_t seen_ = 0;    // of all this, when last polled: what moves is worth polling for
  std::size_t bytes_ = 0;
  bool announced_ = true;
  bool direct_ = false;
  int source_ = Message::kAnyRank;
  Status status_;
};

// Until everything that this process has sent is with its peers: to be done by all before a worker
// is destroyed.
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
