#include "ucx/messages.h"

#include <exception>
#include <string>
#include <utility>

#include "ucx/status.h"

namespace torch_ucc {
namespace {

std::string name_of(const Message& message) {
  return (message.peer == Message::kAnyRank ? std::string("any rank") : "rank " + std::to_string(message.peer));
}

}  // namespace

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
    slots_.push_back({this, message});
    bytes_ += message.bytes;
    for (int rank = 0; message.peer == Message::kAnyRank && rank < channel_->size(); ++rank) {
      announced_ = announced_ && channel_->rings(rank);
    }
    announced_ = announced_ && (message.peer == Message::kAnyRank || channel_->rings(message.peer));
  }
}

Status Messages::start(LoopToken& token) {
  post_more(token);
  return {};  // errors are found by poll(), when nothing is under way any more
}

Op::State Messages::poll(LoopToken& token) {
  const std::size_t before = posted_ + ended_;
  if (ended_ == slots_.size() && status_.ok() && next_round_) {
    begin_next_round();
  }
  if (broken() || ended_ == slots_.size()) {
    return State::ended;  // what is still under way when the transport fails stays with UCX
  }
  post_more(token);
  return posted_ + ended_ == before ? State::in_flight : State::advanced;
}

void Messages::begin_next_round() {
  try {
    if (const std::vector<Message> next = next_round_(); !next.empty()) {
      begin(next);
    }
  } catch (const StatusError& error) {
    fail(error.status());
  } catch (const std::exception& error) {  // memory
    fail(Status(StatusCode::transport, error.what()));
  }
}

void Messages::post_more(LoopToken& token) {
  while (!broken() && posted_ < slots_.size() && posted_ - ended_ < kWindow) {
    post(token, slots_[posted_++]);
  }
}

void Messages::post(LoopToken& token, Slot& slot) {
  const Message& message = slot.message;
  UcxWorker& worker = channel_->worker();
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.user_data = &slot;
  param.memory_type = message.memory;
  void* request = nullptr;
  const bool receives = message.kind == Message::Kind::receive;
  worker.count_posted(token);
  if (!receives) {
    param.cb.send = sent;
    try {
      request = ucp_tag_send_nbx(channel_->endpoint(token, message.peer), message.data, message.bytes,
                                 channel_->tag_from(channel_->rank(), space_, tag_), &param);
    } catch (const StatusError& error) {
      worker.count_ended();
      ++ended_;
      fail(error.status());
      return;
    }
  } else {
    const bool any = message.peer == Message::kAnyRank;
    param.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;  // only the callback is told who sent a message that is too long
    param.cb.recv = received;
    request = ucp_tag_recv_nbx(worker.handle(token), message.data, message.bytes,
                               channel_->tag_from(any ? 0 : message.peer, space_, tag_),
                               any ? TagLayout::kAnySource : TagLayout::kExact, &param);
  }
  if (request == nullptr || UCS_PTR_IS_ERR(request)) {
    ended(slot, UCS_PTR_STATUS(request), nullptr);
  }
  // The peer may sleep until this: a receiver for the data, a sender of a large message for somebody to take it.
  if (message.peer == Message::kAnyRank) {
    channel_->ring_all();
  } else {
    channel_->ring(message.peer);
  }
}

// Callbacks of UCX: they record, and nothing else.
void Messages::sent(void* request, ucs_status_t status, void* slot) {
  const auto& ours = *static_cast<Slot*>(slot);
  ours.op->ended(ours, status, nullptr);
  ucp_request_free(request);
}

void Messages::received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* slot) {
  const auto& ours = *static_cast<Slot*>(slot);
  ours.op->ended(ours, status, info);
  ucp_request_free(request);
}

// `info` is null of a send, and of a receive that could not be posted.
void Messages::ended(const Slot& slot, ucs_status_t status, const ucp_tag_recv_info_t* info) {
  channel_->worker().count_ended();
  ++ended_;
  const Message& message = slot.message;
  if (info != nullptr && (status == UCS_OK || status == UCS_ERR_MESSAGE_TRUNCATED)) {
    source_ = TagLayout::source_of(info->sender_tag);
    if (status != UCS_OK || info->length != message.bytes) {
      fail(Status(StatusCode::invalid, "the message from rank " + std::to_string(source_) + " has " +
                                           std::to_string(info->length) + " bytes, and " + std::to_string(message.bytes) +
                                           " were to be received"));
    }
  } else if (status != UCS_OK) {
    const bool receives = message.kind == Message::Kind::receive;
    fail(from_ucx(status, (receives ? "receiving from " : "sending to ") + name_of(message)));
  }
}

// The first of the worst: one of the transport hides one of a size.
void Messages::fail(Status status) {
  if (status_.ok() || (status.code() == StatusCode::transport && status_.code() != StatusCode::transport)) {
    status_ = std::move(status);
  }
}

// As Collective::patience.
microseconds Messages::patience() const {
  constexpr std::size_t kBytesPerMicrosecond = 1000;
  return microseconds(bytes_ / kBytesPerMicrosecond);
}

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
