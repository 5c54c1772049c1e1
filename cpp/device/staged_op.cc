#include "device/staged_op.h"

#include <optional>

namespace torch_ucc {

Status StagedOp::start(LoopToken& token) {
  ticket_ = turns_->take(token);
  if (has_arrived() && turns_->serves(token, ticket_)) {
    status_ = begin(token);
  }
  return status_;
}

Op::State StagedOp::poll(LoopToken& token) {
  if (!begun_) {
    if (!has_arrived() || !turns_->serves(token, ticket_)) {
      return status_.ok() ? State::in_flight : State::ended;
    }
    status_ = begin(token);
    if (status_.ok()) {
      op_->announce();
    }
    return status_.ok() ? State::advanced : State::ended;
  }
  const State state = poll_begun(token);
  if (state == State::ended) {
    status_ = op_->transport_status();
    if (direct() != nullptr && status_.code() != StatusCode::transport) {
      direct()->end(token);  // else the libraries may be at work still
    }
  }
  return state;
}

Op::State StagedOp::poll_begun(LoopToken& token) {
  if (direct() == nullptr) {
    return op_->poll(token);
  }
  const Direct::OnDevice current(token, *direct());
  return op_->poll(token);
}

bool StagedOp::has_arrived() {
  if (!arrived_ && status_.ok()) {
    const std::optional<Status> arrived = copies_ == nullptr ? Status() : copies_->arrived(0);
    arrived_ = arrived && arrived->ok();
    status_ = arrived.value_or(Status());
  }
  return arrived_;
}

// Later ones need not wait for the end of this one, nor if it cannot begin.
Status StagedOp::begin(LoopToken& token) {
  begun_ = true;
  turns_->pass(token);
  if (direct() == nullptr) {
    return op_->start(token);
  }
  direct()->begin(token, copies_->stream());
  const Direct::OnDevice current(token, *direct());
  Status started = op_->start(token);
  if (!started.ok()) {
    direct()->end(token);
  }
  return started;
}

Status StagedOp::finish() {
  Status status = op_->finish();
  if (status.ok() && copies_ != nullptr) {
    copies_->end();
  }
  return status;
}

void StagedOp::announce() const {
  if (begun_) {
    op_->announce();
  }
}

bool StagedOp::is_announced() const {
  const bool is_there = copies_ == nullptr || !copies_->in_slices();  // nobody rings when a slice arrives
  return begun_.load(std::memory_order_relaxed) && is_there && op_->is_announced();
}

std::string StagedOp::waits_for() const {
  if (begun_) {
    return copies_ != nullptr && copies_->hold_up()
               ? "the rest of its data to come from " + copies_->device().str() + ", and a part of it was sent"
               : op_->waits_for();
  }
  return arrived_ || copies_ == nullptr
             ? "an earlier operation of the group, which waits for its stream"
             : "what was queued on its stream of " + copies_->device().str() + ", and nothing of it was sent";
}

}  // namespace torch_ucc
