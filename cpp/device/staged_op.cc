#include "device/staged_op.h"

#include <exception>
#include <optional>
#include <utility>

namespace torch_ucc {
namespace {

constexpr const char* kLeft = "its caller stopped waiting before the data to send was ready";

}  // namespace

StagedOp::StagedOp(std::shared_ptr<Op> op, std::shared_ptr<Copies> copies, const Line& line, EffectOrder::Earlier after,
                   bool reads)
    : OpDecorator(std::move(op)),
      copies_(std::move(copies)),
      tickets_(line.tickets),
      waiting_(line.waiting),
      after_(std::move(after)),
      follows_others_(!after_.empty()),
      reads_(reads) {
  waiting_->fetch_add(1, std::memory_order_relaxed);
  if (follows_others_) {
    const std::shared_ptr<const Op> first = after_.front().op.lock();
    first_of_these_ = first == nullptr ? "an earlier operation" : first->describe();
  }
}

StagedOp::~StagedOp() { count_begun(); }

void StagedOp::count_begun() {
  if (const std::shared_ptr<std::atomic<int>> waiting = std::exchange(waiting_, nullptr)) {
    waiting->fetch_sub(1, std::memory_order_relaxed);
  }
}

Status StagedOp::start(LoopToken& token) {
  ticket_ = tickets_->take(token);
  if (has_arrived() && tickets_->serves(token, ticket_)) {
    status_ = begin(token);
  }
  return status_;
}

Op::State StagedOp::poll(LoopToken& token) {
  if (!begun_) {
    if (!has_arrived() || !tickets_->serves(token, ticket_)) {
      return status_.ok() ? State::in_flight : State::ended;
    }
    status_ = begin(token);
    if (status_.ok()) {
      inner().announce();
    }
    return status_.ok() ? State::advanced : State::ended;
  }
  const State state = poll_begun(token);
  if (state == State::ended) {
    status_ = inner().transport_status();
    if (direct() != nullptr && status_.code() != StatusCode::transport) {
      // After an error of the transport, the libraries may still use the memory
      direct()->end(token);
    }
  }
  return state;
}

Op::State StagedOp::poll_begun(LoopToken& token) {
  if (direct() == nullptr) {
    return inner().poll(token);
  }
  const Direct::OnDevice current(token, *direct());
  return inner().poll(token);
}

bool StagedOp::earlier_have_ended() {
  std::erase_if(after_, [](const EffectOrder::Before& each) { return each.over(); });
  return after_.empty();
}

bool StagedOp::has_arrived() {
  if (!has_followed_ && status_.ok()) {
    if (!earlier_have_ended()) {
      return false;
    }
    follow();
  }
  if (!arrived_ && status_.ok()) {
    const std::optional<Status> arrived = copies_ == nullptr ? Status() : copies_->arrived(0);
    arrived_ = arrived && arrived->ok();
    status_ = arrived.value_or(Status());
  }
  return arrived_;
}

// The tensors of this operation now hold what it sends. A later operation that writes to them waits
// until this function has made the copy (EffectOrder::before()).
void StagedOp::follow() {
  const MutexLock lock(mutex_);
  if (follows_others_ && is_taken_back_ && reads_) {
    status_ = Status(StatusCode::transport, kLeft);
  } else if (follows_others_ && copies_ != nullptr) {
    try {
      copies_->begin(/*after_others=*/true);
    } catch (const std::exception& error) {
      status_ = Status(StatusCode::transport, std::string("its device failed: ") + error.what());
    }
  } else if (detach_when_followed_ && !is_taken_back_) {
    try {
      OpDecorator::detach_inputs();
    } catch (const std::exception& error) {
      status_ = Status(StatusCode::transport, std::string("the data to send could not be copied: ") + error.what());
    }
  }
  has_followed_ = true;
}

bool StagedOp::detach_inputs() {
  if (!can_detach_inputs()) {
    return false;
  }
  const MutexLock lock(mutex_);
  if (follows_others_ && !has_followed_) {
    detach_when_followed_ = true;
    return true;
  }
  return OpDecorator::detach_inputs();
}

// Passes the turn on before it starts the operation: later operations do not wait for the end of
// this one, and they may begin even if this one cannot.
Status StagedOp::begin(LoopToken& token) {
  begun_ = true;
  count_begun();
  tickets_->pass(token);
  if (direct() == nullptr) {
    return inner().start(token);
  }
  {
    const MutexLock lock(mutex_);
    if (is_taken_back_) {  // UCX or UCC would send what the caller has written there since
      return Status(StatusCode::transport, kLeft);
    }
  }
  direct()->begin(token, copies_->stream());
  const Direct::OnDevice current(token, *direct());
  Status started = inner().start(token);
  if (!started.ok()) {
    direct()->end(token);
  }
  return started;
}

Status StagedOp::finish() {
  Status status = inner().finish();
  if (status.ok() && copies_ != nullptr) {
    copies_->end();
  }
  return status;
}

void StagedOp::announce() const {
  if (begun_) {
    inner().announce();
  }
}

bool StagedOp::is_announced() const {
  // No bell rings when a slice arrives
  const bool is_there = copies_ == nullptr || !copies_->in_slices();
  return begun_.load(std::memory_order_relaxed) && is_there && inner().is_announced();
}

void StagedOp::cancel(LoopToken& token) {
  if (begun_) {
    OpDecorator::cancel(token);
  }
}

// Stand-ins belong to the operation, so an operation that goes on still sends what arrives there
// from the device. Device memory cannot be copied here, so an operation on device memory posts
// nothing more.
void StagedOp::on_taken_back(After after) noexcept {
  const MutexLock lock(mutex_);
  is_taken_back_ = true;
  if (after == After::given_up || copies_ == nullptr) {
    OpDecorator::on_taken_back(after);
  } else if (direct() != nullptr) {
    OpDecorator::on_taken_back(After::given_up);
  }
  if (copies_ != nullptr) {
    copies_->stop();
  }
}

std::string StagedOp::waits_for() const {
  if (begun_) {
    return copies_ != nullptr && copies_->hold_up()
               ? "the rest of its data to come from " + copies_->device().str() + ", of which a part was sent"
               : inner().waits_for();
  }
  if (!has_followed_) {
    return "an earlier operation of its group on the same memory (" + first_of_these_ + "), and nothing of it was sent";
  }
  return arrived_ || copies_ == nullptr
             ? "an earlier operation of the group, which has not begun"
             : "what was queued on its stream of " + copies_->device().str() + ", and none of its data was sent";
}

}  // namespace torch_ucc
