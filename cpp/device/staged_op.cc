#include "device/staged_op.h"

#include <exception>

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
  const State state = op_->poll(token);
  if (state == State::ended) {
    status_ = op_->transport_status();
  }
  return state;
}

bool StagedOp::has_arrived() {
  try {
    if (!arrived_ && (copies_ == nullptr || copies_->have_arrived())) {
      arrived_ = true;
    }
  } catch (const std::exception& error) {  // the device is broken, and the peers will wait for this operation
    status_ = Status(StatusCode::transport, std::string("its device failed: ") + error.what());
  }
  return arrived_;
}

// Later ones need not wait for the end of this one, nor if it cannot begin.
Status StagedOp::begin(LoopToken& token) {
  begun_ = true;
  turns_->pass(token);
  return op_->start(token);
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

std::string StagedOp::waits_for() const {
  if (begun_) {
    return {};
  }
  return arrived_ ? "an earlier operation of the group, which waits for its stream"
                  : "what was queued on its stream of " + copies_->device().str() + ", and nothing of it was sent";
}

}  // namespace torch_ucc
