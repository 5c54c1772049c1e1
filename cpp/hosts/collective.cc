#include "hosts/collective.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <new>
#include <utility>

#include "shm/kernels.h"

namespace torch_ucc::hosts {

Collective::Collective(std::shared_ptr<UccTeam> team, const Levels& levels, shm::Movement movement, const UccReduction& ucc)
    : team_(std::move(team)),
      levels_(levels),
      movement_(std::move(movement)),
      cut_(levels_, movement_, ucc),
      bytes_(std::max(movement_.sources.bytes(), movement_.destinations.bytes())) {}

Status Collective::start(LoopToken& token) {
  if (team_->handle(token) == nullptr) {
    return Status(StatusCode::closed, "the group was shut down");
  }
  ticket_ = team_->tickets().take(token);
  poll(token);  // the next poll() reports an error again
  return {};
}

Op::State Collective::poll(LoopToken& token) {
  if (!begun_.load(std::memory_order_relaxed)) {
    if (!team_->tickets().serves(token, ticket_)) {
      return State::in_flight;
    }
    begun_.store(true, std::memory_order_relaxed);
  }
  bool advanced = false;
  for (bool goes_on = true; goes_on && status_.ok();) {
    goes_on = begin_next(token);
    for (std::size_t i = first_; i < made_ && status_.ok(); ++i) {
      goes_on = poll_piece(token, slot(i)) || goes_on;
    }
    while (first_ < made_ && slot(first_).has_ended()) {
      ++first_;
    }
    advanced = advanced || goes_on;
  }
  if (!status_.ok()) {
    return State::ended;
  }
  if (first_ != cut_.pieces()) {
    return advanced ? State::advanced : State::in_flight;
  }
  if (!std::exchange(has_ended_, true)) {  // start() may have called this before
    team_->tickets().pass(token);
    drop_pieces(token);
  }
  return State::ended;
}

// A Work that lives on must not hold this memory.
void Collective::drop_pieces(LoopToken& token) {
  const MemoryLease::Use use(lease());
  const bool is_given_up = !use && !goes_on_alone();  // from then on no other thread uses the pieces
  if (was_in_doubt_) {
    keep_undrained(token);
  }
  if (is_given_up || !is_drained(token)) {
    return;
  }
  slots_ = {};
  undrained_.clear();
  left_.reset();
}

// UCC never lets go of a request during which it logged an error.
void Collective::keep_undrained(LoopToken& token) {
  std::move(slots_.begin(), slots_.end(), std::back_inserter(undrained_));
  slots_ = {};
  for (std::unique_ptr<Piece>& piece : std::exchange(undrained_, {})) {
    if (piece != nullptr && !piece->is_drained(token)) {
      levels_.engine->keep_for_transport(token, std::shared_ptr<Piece>(std::move(piece)));
    }
  }
}

// The ranks of a host must take their stages on the board in one order: the first one of piece 0, the
// first one of piece 1, the second one of piece 0, the first one of piece 2, the second one of piece 1, and
// so on. Begins the next one if it can begin.
bool Collective::begin_next(LoopToken& token) {
  if (next_ == 2 * cut_.pieces()) {
    return false;
  }
  // The first and the last one come without their counterparts
  const std::size_t last = cut_.pieces() - 1;
  const bool again = next_ != 0 && (next_ % 2 == 0 || next_ == 2 * last + 1);
  if (!again && !make_piece(token)) {
    return false;
  }
  Piece& piece = slot(!again ? made_ - 1 : next_ % 2 == 0 ? next_ / 2 - 1 : last);
  if (again && piece.stage != Piece::on_host_again) {
    return false;
  }
  ++next_;
  begin(token, piece);
  return true;
}

void Collective::begin(LoopToken& token, Piece& piece) {
  piece.has_begun = true;
  for (const std::unique_ptr<Op>& step : piece.steps[piece.stage]) {
    fail(step->start(token));
    step->announce();
    if (!status_.ok()) {
      return;
    }
  }
}

// Makes the next piece. Returns false if it must wait, or after an error.
bool Collective::make_piece(LoopToken& token) {
  if (made_ == first_ + kWindow) {
    return false;
  }
  try {
    fill_slot(token);
  } catch (const std::bad_alloc&) {
    fail(Status(StatusCode::transport, "a buffer of " + std::to_string(cut_.room()) + " bytes cannot be allocated"));
  }
  return status_.ok();
}

void Collective::fill_slot(LoopToken& token) {
  const MemoryLease::Use use(lease());
  if (!use && !goes_on_alone()) {
    fail(Status(StatusCode::transport, "its caller stopped waiting before all data was sent"));
    return;
  }
  std::unique_ptr<Piece>& slot = slots_[made_ % kWindow];
  std::unique_ptr<char[]> memory;
  if (slot != nullptr && slot->is_drained(token)) {
    memory = std::move(slot->memory);
  } else {
    if (slot != nullptr) {
      undrained_.push_back(std::move(slot));
    }
    memory = std::make_unique_for_overwrite<char[]>(cut_.room());
  }
  slot = cut_.piece(made_, levels_, movement_, std::move(memory));
  ++made_;
  for (std::size_t stage = 0; stage < Piece::kStages && !use; ++stage) {
    for (const std::unique_ptr<Op>& step : slot->steps[stage]) {
      step->take_back(After::goes_on);
    }
  }
}

bool Collective::poll_piece(LoopToken& token, Piece& piece) {
  if (piece.has_ended() || !piece.has_begun) {
    return false;
  }
  const std::vector<std::unique_ptr<Op>>& steps = piece.steps[piece.stage];
  bool advanced = false;
  while (piece.ended != steps.size()) {
    Op& step = *steps[piece.ended];
    if (!piece.in_doubt_since) {
      const State state = step.poll(token);
      advanced = advanced || state != State::in_flight;
      if (state != State::ended) {
        return advanced;
      }
      fail(step.transport_status());
    }
    if (status_.ok() && !may_go_on(token, piece, step)) {
      return advanced;
    }
    ++piece.ended;
    if (!status_.ok()) {
      return true;
    }
  }
  if (piece.stage == Piece::in_row) {
    add_up(piece.sum);
  }
  ++piece.stage;
  piece.has_begun = false;
  piece.ended = 0;
  if (piece.stage == Piece::in_row) {  // the pieces come here in their order, on all ranks
    begin(token, piece);
  }
  return true;
}

// A step in the row may have ended well with data that never came. The next stage would show these data to
// the other ranks of the host, and only this rank knows of the doubt. Returns false while there is no verdict
// on the step. A verdict against the step fails the group, and this function goes on to return false.
bool Collective::may_go_on(LoopToken& token, Piece& piece, const Op& step) {
  const Status doubt = step.doubt();
  if (doubt.ok()) {
    return true;
  }
  if (!piece.in_doubt_since) {
    piece.in_doubt_since = Clock::now();
  }
  const Status of_this(doubt.code(), describe() + ": " + doubt.message());
  if (!levels_.engine->believes(token, domain(), of_this, *piece.in_doubt_since)) {
    return false;
  }
  piece.in_doubt_since.reset();
  was_in_doubt_ = true;
  return true;
}

void Collective::add_up(const Piece::Sum& sum) {
  if (sum.sources.empty() || sum.bytes == 0) {
    return;
  }
  const auto reduce = [&] {
    const shm::Reduce kernel = shm::reduce_kernel(movement_.type, movement_.op);
    kernel(sum.to, sum.sources.data(), sum.sources.size(), sum.bytes / shm::size_of(movement_.type));
  };
  if (!sum.is_result) {
    reduce();
    return;
  }
  if (const MemoryLease::Use use(lease()); use) {
    reduce();
  }
}

// Once a step has failed, the peers wait for data that never comes. So every error is one of the
// transport, which fails the group, or says that the ranks called different operations.
void Collective::fail(const Status& status) {
  if (status_.ok() && !status.ok()) {
    status_ = status.code() == StatusCode::mismatch ? status : Status(StatusCode::transport, status.message());
  }
}

std::string Collective::waits_for() const { return begun_.load(std::memory_order_relaxed) ? "" : kEarlierOperations; }

bool Collective::starts_slowly() const { return bytes_ > kQuickToStart; }

void Collective::cancel(LoopToken& token) {
  token.check();
  levels_.board->set_state(shm::State::failed);
  levels_.board->ring_members();
}

bool Collective::is_drained(LoopToken& token) {
  const auto is_drained = [&](const std::unique_ptr<Piece>& piece) { return piece == nullptr || piece->is_drained(token); };
  return std::all_of(slots_.begin(), slots_.end(), is_drained) && std::all_of(undrained_.begin(), undrained_.end(), is_drained);
}

// UCC works in memory of the operation, so only the steps on the host, and the pieces that are made
// later, use the memory of the caller. If the operation goes on, later pieces read from a copy.
void Collective::on_taken_back(After after) noexcept {
  for (const std::unique_ptr<Piece>& piece : slots_) {
    for (std::size_t stage = 0; piece != nullptr && stage < Piece::kStages; ++stage) {
      for (const std::unique_ptr<Op>& step : piece->steps[stage]) {
        step->take_back(after);
      }
    }
  }
  if (after == After::goes_on) {
    left_ = movement_.sources.replace_by_copy();
  }
}

}  // namespace torch_ucc::hosts
