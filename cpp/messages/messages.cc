#include "messages/messages.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace torch_ucc {
namespace {

std::string name_of(const Message& message) {
  return (message.peer == Message::kAnyRank ? std::string("any rank") : "rank " + std::to_string(message.peer));
}

}  // namespace

bool Parcel::pack(std::size_t offset, void* to, std::size_t bytes) {
  ++op_.copied_;
  std::optional<MemoryLease::Use> use;
  if (message_.is_callers && !use.emplace(op_.lease())) {
    op_.lease().wait_until_revoked();
    if (copy_ == nullptr && bytes != 0) {
      return false;
    }
  }
  if (bytes != 0) {
    std::memcpy(to, (copy_ == nullptr ? static_cast<const char*>(message_.data) : copy_.get()) + offset, bytes);
  }
  return true;
}

void Parcel::unpack(std::size_t offset, const void* from, std::size_t bytes) {
  ++op_.copied_;
  if (bytes == 0 || offset >= message_.bytes) {
    return;
  }
  std::optional<MemoryLease::Use> use;
  if (!message_.is_callers || use.emplace(op_.lease())) {
    std::memcpy(static_cast<char*>(message_.data) + offset, from, std::min(bytes, message_.bytes - offset));
  }
}

void Parcel::begin(LoopToken& token, Carrier& carrier) {
  if (carrier_ != nullptr) {
    carrier_->count_ended();
  }
  carrier_ = &carrier;
  carrier.count_posted(token);
}

void Parcel::ended(const Status& status, int source, std::size_t length) {
  carrier_->count_ended();
  ended_.store(true, std::memory_order_relaxed);
  op_.ended(*this, status, source, length);
}

void Parcel::make_copy() {
  if (!receives() && message_.is_callers && !message_.direct && copy_ == nullptr && !has_ended()) {
    copy_ = std::make_unique_for_overwrite<char[]>(message_.bytes);
    std::memcpy(copy_.get(), message_.data, message_.bytes);
  }
}

Messages::Messages(std::shared_ptr<Channel> channel, Space space, std::uint32_t tag, const std::vector<Message>& messages,
                   NextRound next_round)
    : channel_(std::move(channel)), space_(space), tag_(tag), next_round_(std::move(next_round)) {
  begin(messages);
}

void Messages::begin(const std::vector<Message>& messages) {
  parcels_.clear();
  parcels_.reserve(messages.size());
  posted_ = 0;
  ended_ = 0;
  bytes_ = 0;
  for (const Message& message : messages) {
    parcels_.emplace_back(*this, message);
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
  if (ended_ == parcels_.size() && status_.ok() && next_round_) {
    begin_next_round();
  }
  if (broken() || ended_ == parcels_.size()) {
    return State::ended;  // if the transport failed, the carrier keeps what is still in flight
  }
  post_more(token);
  const std::size_t before = std::exchange(seen_, posted_ + ended_ + copied_);
  return seen_ == before ? State::in_flight : State::advanced;
}

// Whether more may be sent or received: the lease holds, or the operation goes on alone with
// copies.
bool Messages::may_touch_memory() { return MemoryLease::Use(lease()) || goes_on_alone(); }

void Messages::begin_next_round() {
  const MemoryLease::Use use(lease());  // no other thread looks at the parcels while they change
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
  while (!broken() && posted_ < parcels_.size() && posted_ - ended_ < kWindow) {
    Parcel& parcel = parcels_[posted_++];
    if (!may_touch_memory()) {
      --posted_;
      return;
    }
    post(token, parcel);
  }
}

void Messages::post(LoopToken& token, Parcel& parcel) {
  channel_->post(token, space_, tag_, parcel);
  // The peer may be asleep: a receiver that waits for the data, or the sender of a large message
  // that waits for the receive.
  if (parcel.is_from_any()) {
    channel_->ring_all();
  } else {
    channel_->ring(parcel.message().peer);
  }
}

void Messages::ended(const Parcel& parcel, const Status& status, int source, std::size_t length) {
  ++ended_;
  if (!status.ok()) {
    fail(Status(status.code(),
                (parcel.receives() ? "receiving from " : "sending to ") + name_of(parcel.message()) + ": " + status.message()));
    return;
  }
  if (!parcel.receives()) {
    return;
  }
  source_ = source;
  if (length != parcel.bytes()) {
    fail(Status(StatusCode::invalid, "the message from rank " + std::to_string(source) + " has " + std::to_string(length) +
                                         " bytes, and this rank expects " + std::to_string(parcel.bytes())));
  }
}

// Copies everything that the carrier may read later.
void Messages::on_taken_back(After after) noexcept {
  const std::size_t read = after == After::goes_on ? parcels_.size() : posted_.load();
  for (std::size_t i = 0; i < read; ++i) {
    if (after == After::goes_on || !channel_->cancels_at_once(parcels_[i].message())) {
      parcels_[i].make_copy();
    }
  }
}

// Copies what is still to be sent, unless the carrier reads it directly or a later round may need it.
bool Messages::detach_inputs() {
  if (!can_detach_inputs()) {
    return false;
  }
  if (const MemoryLease::Use use(lease()); use) {
    for (Parcel& parcel : parcels_) {
      parcel.make_copy();
    }
  }
  return true;
}

void Messages::cancel(LoopToken& token) {
  for (std::size_t i = 0; i < posted_; ++i) {
    if (!parcels_[i].has_ended()) {
      parcels_[i].carrier().cancel(token, parcels_[i]);
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
  for (const Parcel& parcel : parcels_) {
    const bool concerned = parcel.message().peer == loss.rank || parcel.is_from_any();
    if (concerned && !parcel.has_ended()) {
      need = std::max(need, parcel.receives() ? Need::direct : Need::missing);
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

}  // namespace torch_ucc
