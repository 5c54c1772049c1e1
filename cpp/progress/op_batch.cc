#include "progress/op_batch.h"

#include <algorithm>
#include <exception>

namespace torch_ucc {

Status OpBatch::start(LoopToken& token) {
  under_way_.reserve(parts_.size());
  for (const auto& part : parts_) {
    if (Status started = part->start(token); !started.ok()) {
      // If the first part fails, nothing was sent and the error concerns this call only. Data of
      // earlier parts cannot be taken back, so then the group must fail.
      const StatusCode code = under_way_.empty() ? started.code() : StatusCode::transport;
      return Status(code, part->describe() + ": " + started.message());
    }
    part->recording().posted();
    under_way_.push_back(part.get());
  }
  return {};
}

Op::State OpBatch::poll(LoopToken& token) {
  State state = State::in_flight;
  std::erase_if(under_way_, [&](Op* part) {
    const State now = part->poll(token);
    if (now != State::in_flight) {
      state = State::advanced;
    }
    if (now != State::ended) {
      return false;
    }
    const Status ended = part->transport_status();
    part->record_end(ended.code());
    note(*part, ended);
    return true;
  });
  return under_way_.empty() || fails_group(status_.code()) ? State::ended : state;
}

void OpBatch::note(const Op& part, const Status& status) {
  if (!status.ok() && (status_.ok() || (fails_group(status.code()) && !fails_group(status_.code())))) {
    status_ = Status(status.code(), part.describe() + ": " + status.message());
  }
}

Status OpBatch::doubt() const {
  for (const auto& part : parts_) {
    if (Status doubt = part->doubt(); !doubt.ok()) {
      return Status(doubt.code(), part->describe() + ": " + doubt.message());
    }
  }
  return {};
}

// Finishes all parts, even if one of them fails, because the data of all has arrived. Returns the
// first error.
Status OpBatch::finish() {
  Status first;
  for (const auto& part : parts_) {
    Status finished;
    try {
      finished = part->finish();
    } catch (const std::exception& error) {
      finished = Status(StatusCode::internal, std::string("its result could not be stored: ") + error.what());
    }
    if (first.ok() && !finished.ok()) {
      first = Status(finished.code(), part->describe() + ": " + finished.message());
    }
  }
  return first;
}

Op::Need OpBatch::need_of(const Loss& loss) const {
  Need worst = Need::none;
  for (const auto& part : parts_) {
    worst = std::max(worst, part->need_of(loss));
  }
  return worst;
}

void OpBatch::on_taken_back(After after) noexcept {
  for (const auto& part : parts_) {
    part->take_back(after);
  }
}

bool OpBatch::detach_inputs() {
  return can_detach_inputs() && std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->detach_inputs(); });
}

bool OpBatch::can_detach_inputs() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->can_detach_inputs(); });
}

bool OpBatch::has_detached_inputs() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->has_detached_inputs(); });
}

void OpBatch::cancel(LoopToken& token) {
  for (const auto& part : parts_) {
    part->cancel(token);
  }
}

bool OpBatch::is_drained(LoopToken& token) {
  bool all = true;
  for (const auto& part : parts_) {
    all = part->is_drained(token) && all;
  }
  return all;
}

void OpBatch::let_go() {
  for (const auto& part : parts_) {
    part->let_go();
  }
}

void OpBatch::record_wait(Clock::time_point since) const {
  for (const auto& part : parts_) {
    part->record_wait(since);
  }
}

void OpBatch::record_end(StatusCode result) const {
  for (const auto& part : parts_) {
    part->record_end(result);
  }
}

void OpBatch::announce() const {
  for (const auto& part : parts_) {
    part->announce();
  }
}

bool OpBatch::is_announced() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->is_announced(); });
}

microseconds OpBatch::patience() const {
  microseconds sum{0};
  for (const auto& part : parts_) {
    sum += part->patience();
  }
  return sum;
}

bool OpBatch::starts_slowly() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->starts_slowly(); });
}

std::string OpBatch::waits_for() const {
  for (const auto& part : parts_) {
    if (std::string reason = part->waits_for(); !reason.empty()) {
      return reason;
    }
  }
  return {};
}

std::string OpBatch::describe() const {
  constexpr std::size_t kNamed = 3;
  std::string text = name_ + " (" + std::to_string(parts_.size()) + " operations: ";
  for (std::size_t i = 0; i < std::min(kNamed, parts_.size()); ++i) {
    text += (i == 0 ? "" : ", ") + parts_[i]->describe();
  }
  return text + (parts_.size() > kNamed ? ", ..." : "") + ")";
}

}  // namespace torch_ucc
