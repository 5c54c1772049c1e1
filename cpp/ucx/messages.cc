#include "ucx/messages.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "ucx/status.h"

namespace torch_ucc {
namespace {

// The data of a small message lies in its slot, where UCX reads and writes it directly. That is
// faster than a callback.
bool is_small(const Message& message) { return !message.direct && message.bytes <= 32; }

std::string name_of(const Message& message) {
  return (message.peer == Message::kAnyRank ? std::string("any rank") : "rank " + std::to_string(message.peer));
}

}  // namespace

// A generic datatype of UCX: UCX calls pack() for each part of a message that it sends and unpack()
// for each part that has arrived, in any order. The buffer that UCX is given is the slot.
struct Messages::Copier {
  static void* begin_pack(void* /*context*/, const void* slot, std::size_t /*count*/) { return const_cast<void*>(slot); }
  static void* begin_unpack(void* /*context*/, void* slot, std::size_t /*count*/) { return slot; }
  static std::size_t packed_size(void* slot) { return static_cast<Slot*>(slot)->message.bytes; }

  static std::size_t pack(void* state, std::size_t offset, void* to, std::size_t room) {
    auto& slot = *static_cast<Slot*>(state);
    ++slot.op->copied_;
    const std::size_t bytes = std::min(room, slot.message.bytes - offset);
    std::optional<MemoryLease::Use> use;
    if (slot.message.is_callers && !use.emplace(slot.op->lease())) {
      slot.op->lease().wait_until_revoked();
    }
    std::memcpy(to, (slot.copy == nullptr ? static_cast<const char*>(slot.message.data) : slot.copy.get()) + offset, bytes);
    return bytes;
  }

  static ucs_status_t unpack(void* state, std::size_t offset, const void* from, std::size_t length) {
    auto& slot = *static_cast<Slot*>(state);
    ++slot.op->copied_;
    if (offset < slot.message.bytes) {  // ended() reports a message that is too long
      std::optional<MemoryLease::Use> use;
      if (!slot.message.is_callers || use.emplace(slot.op->lease())) {
        std::memcpy(static_cast<char*>(slot.message.data) + offset, from, std::min(length, slot.message.bytes - offset));
      }
    }
    return UCS_OK;
  }

  static void end(void* /*slot*/) {}

  static ucp_datatype_t type() {
    static const ucp_datatype_t one = [] {
      const ucp_generic_dt_ops_t calls{begin_pack, begin_unpack, packed_size, pack, unpack, end};
      ucp_datatype_t made{};
      throw_if_error(from_ucx(ucp_dt_create_generic(&calls, nullptr, &made), "ucp_dt_create_generic"));
      return made;
    }();
    return one;
  }
};

Messages::Messages(std::shared_ptr<Channel> channel, Space space, std::uint32_t tag, const std::vector<Message>& messages,
                   NextRound next_round)
    : channel_(std::move(channel)), space_(space), tag_(tag), next_round_(std::move(next_round)) {
  begin(messages);
}

void Messages::begin(const std::vector<Message>& messages) {
  slots_.clear();
  slots_.reserve(messages.size());
  posted_ = 0;
  ended_ = 0;
  bytes_ = 0;
  for (const Message& message : messages) {
    slots_.emplace_back(this, message);
    bytes_ += message.bytes;
    direct_ = direct_ || message.direct.has_value();
    for (int rank = 0; message.peer == Message::kAnyRank && rank < channel_->size(); ++rank) {
      announced_ = announced_ && channel_->rings(rank);
    }
    announced_ = announced_ && (message.peer == Message::kAnyRank || channel_->rings(message.peer));
  }
}

Status Messages::start(LoopToken& token) {
  post_more(token);
  return {};  // poll() reports errors
}

Op::State Messages::poll(LoopToken& token) {
  if (ended_ == slots_.size() && status_.ok() && next_round_) {
    begin_next_round();
  }
  if (broken() || ended_ == slots_.size()) {
    return State::ended;  // if the transport failed, UCX keeps what is still in flight
  }
  post_more(token);
  const std::size_t before = std::exchange(seen_, posted_ + ended_ + copied_);
  return seen_ == before ? State::in_flight : State::advanced;
}

// Whether more may be sent or received: the lease holds, or the operation goes on alone with
// copies.
bool Messages::may_touch_memory() { return MemoryLease::Use(lease()) || goes_on_alone(); }

void Messages::begin_next_round() {
  const MemoryLease::Use use(lease());  // no other thread looks at the slots while they change
  if (!use && !goes_on_alone()) {
    return;
  }
  try {
    if (const std::vector<Message> next = next_round_(); !next.empty()) {
      begin(next);
    }
  } catch (const StatusError& error) {
    fail(error.status());
  } catch (const std::exception& error) {  // such as lack of memory
    fail(Status(StatusCode::transport, error.what()));
  }
}

// A message is counted as posted before the lease is checked, because the thread that takes the
// memory back copies all messages that are counted.
void Messages::post_more(LoopToken& token) {
  while (!broken() && posted_ < slots_.size() && posted_ - ended_ < kWindow) {
    Slot& slot = slots_[posted_++];
    if (!may_touch_memory()) {
      --posted_;
      return;
    }
    post(token, slot);
  }
}

void Messages::post(LoopToken& token, Slot& slot) {
  const Message& message = slot.message;
  UcxWorker& worker = channel_->worker();
  const bool receives = message.kind == Message::Kind::receive;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.user_data = &slot;
  void* data = &slot;
  std::size_t count = 1;
  if (message.direct || is_small(message)) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.memory_type = message.direct.value_or(UCS_MEMORY_TYPE_HOST);
    data = is_small(message) ? slot.small.data() : message.data;
    count = message.bytes;
  } else {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = Copier::type();
  }
  if (is_small(message) && !receives) {
    Copier::pack(&slot, 0, data, count);
  }
  void* request = nullptr;
  worker.count_posted(token);
  if (!receives) {
    param.cb.send = sent;
    try {
      request = ucp_tag_send_nbx(channel_->endpoint(token, message.peer), data, count,
                                 channel_->tag_from(channel_->rank(), space_, tag_), &param);
    } catch (const StatusError& error) {
      worker.count_ended();
      ++ended_;
      slot.ended.store(true, std::memory_order_relaxed);
      fail(error.status());
      return;
    }
  } else {
    const bool any = message.peer == Message::kAnyRank;
    // Only the callback learns the source of a message that is too long
    param.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    param.cb.recv = received;
    request = ucp_tag_recv_nbx(worker.handle(token), data, count, channel_->tag_from(any ? 0 : message.peer, space_, tag_),
                               any ? TagLayout::kAnySource : TagLayout::kExact, &param);
    slot.request = request;
  }
  if (request == nullptr || UCS_PTR_IS_ERR(request)) {
    ended(slot, UCS_PTR_STATUS(request), nullptr);
  }
  // The peer may be asleep: a receiver that waits for the data, or the sender of a large message
  // that waits for the receive.
  if (message.peer == Message::kAnyRank) {
    channel_->ring_all();
  } else {
    channel_->ring(message.peer);
  }
}

// Callbacks of UCX. They only record how a message ended.
void Messages::sent(void* request, ucs_status_t status, void* slot) {
  auto& ours = *static_cast<Slot*>(slot);
  ours.op->ended(ours, status, nullptr);
  ucp_request_free(request);
}

void Messages::received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* slot) {
  auto& ours = *static_cast<Slot*>(slot);
  ours.op->ended(ours, status, info);
  ucp_request_free(request);
}

// `info` is null for a send, and for a receive that could not be posted.
void Messages::ended(Slot& slot, ucs_status_t status, const ucp_tag_recv_info_t* info) {
  channel_->worker().count_ended();
  ++ended_;
  slot.ended.store(true, std::memory_order_relaxed);
  const Message& message = slot.message;
  const bool receives = message.kind == Message::Kind::receive;
  if (info != nullptr && (status == UCS_OK || status == UCS_ERR_MESSAGE_TRUNCATED)) {
    source_ = TagLayout::source_of(info->sender_tag);
    if (status != UCS_OK || info->length != message.bytes) {
      fail(Status(StatusCode::invalid, "the message from rank " + std::to_string(source_) + " has " +
                                           std::to_string(info->length) + " bytes, and " + std::to_string(message.bytes) +
                                           " were to be received"));
    } else if (is_small(message)) {
      Copier::unpack(&slot, 0, slot.small.data(), message.bytes);
    }
  } else if (status != UCS_OK) {
    fail(from_ucx(status, (receives ? "receiving from " : "sending to ") + name_of(message)));
  }
}

void Messages::Slot::make_copy() {
  if (message.kind == Message::Kind::send && message.is_callers && !message.direct && copy == nullptr && !ended.load()) {
    copy = std::make_unique_for_overwrite<char[]>(message.bytes);
    std::memcpy(copy.get(), message.data, message.bytes);
  }
}

// Copies everything that UCX may read later.
void Messages::on_taken_back(After after) noexcept {
  const std::size_t read = after == After::goes_on ? slots_.size() : posted_.load();
  for (std::size_t i = 0; i < read; ++i) {
    slots_[i].make_copy();
  }
}

// Copies what is still to be sent, unless UCX reads it directly or a later round may need it.
bool Messages::detach_inputs() {
  if (!can_detach_inputs()) {
    return false;
  }
  if (const MemoryLease::Use use(lease()); use) {
    for (Slot& slot : slots_) {
      slot.make_copy();
    }
  }
  return true;
}

// Cancels the receives that no message has matched. UCX calls their callbacks at once.
void Messages::cancel(LoopToken& token) {
  for (std::size_t i = 0; i < posted_; ++i) {
    if (!slots_[i].ended && slots_[i].request != nullptr) {
      ucp_request_cancel(channel_->worker().handle(token), slots_[i].request);
    }
  }
}

bool Messages::is_drained(LoopToken& token) {
  token.check();
  return ended_ == posted_;
}

// A message to a rank that has ended never arrives, so its send cannot end well.
Op::Need Messages::need_of(const Loss& loss) const {
  Need need = Need::none;
  for (const Slot& slot : slots_) {
    const bool concerned = slot.message.peer == loss.rank || slot.message.peer == Message::kAnyRank;
    if (concerned && !slot.ended) {
      need = std::max(need, slot.message.kind == Message::Kind::send ? Need::missing : Need::direct);
    }
  }
  return need;
}

// Keeps the first error. An error of the transport replaces an error of size.
void Messages::fail(Status status) {
  if (status_.ok() || (status.code() == StatusCode::transport && status_.code() != StatusCode::transport)) {
    status_ = std::move(status);
  }
}

microseconds Messages::patience() const { return patience_for(bytes_); }

Status FlushWorker::start(LoopToken& token) {
  ucp_request_param_t param{};
  request_ = ucp_worker_flush_nbx(worker_.handle(token), &param);
  if (UCS_PTR_IS_PTR(request_)) {
    worker_.count_posted(token);
  }
  return {};
}

Op::State FlushWorker::poll(LoopToken& token) {
  token.check();
  if (request_ == nullptr) {
    return State::ended;
  }
  if (UCS_PTR_IS_ERR(request_)) {
    status_ = from_ucx(UCS_PTR_STATUS(request_), "ucp_worker_flush_nbx");
    return State::ended;
  }
  const ucs_status_t status = ucp_request_check_status(request_);
  if (status == UCS_INPROGRESS) {
    return State::in_flight;
  }
  ucp_request_free(request_);
  worker_.count_ended();
  status_ = from_ucx(status, "ucp_worker_flush_nbx");
  return State::ended;
}

}  // namespace torch_ucc
