#include "shm/collective.h"

#include <algorithm>
#include <utility>

namespace torch_ucc::shm {
namespace {

// A poll ends after so many steps, so that the thread that drives also looks at other operations.
constexpr int kStepsPerPoll = 8;

}  // namespace

Collective::Collective(std::shared_ptr<Board> board, Movement movement)
    : board_(std::move(board)),
      movement_(std::move(movement)),
      run_{movement_, *board_, &Pattern::of(movement_, *board_)},
      call_(movement_.call()),
      given_(movement_.bytes_given()),
      bytes_(std::max(given_, movement_.destinations.bytes())) {}

Status Collective::start(LoopToken& token) {
  if (board_->state_of(board_->rank()) == shm::State::left) {
    return Status(StatusCode::closed, "the group was shut down");
  }
  ticket_ = board_->tickets().take(token);
  if (advance(token)) {
    advance(token);
  }
  return {};
}

Op::State Collective::poll(LoopToken& token) {
  bool advanced = false;
  for (int i = 0; i < 2 * kStepsPerPoll && phase_ != Phase::ended && advance(token); ++i) {
    advanced = true;
  }
  announce();
  if (phase_ == Phase::ended) {
    return State::ended;
  }
  return advanced ? State::advanced : State::in_flight;
}

// Rings where a peer may wait for this rank alone. If all ranks read from all others, only the last
// one to enter a step lets anybody go on; the fence makes sure that one of them sees that it is.
void Collective::announce() const {
  const std::optional<std::uint64_t> step = std::exchange(unannounced_, std::nullopt);
  if (!step) {
    return;
  }
  if (movement_.is_mutual()) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (std::size_t peer = 0; peer < board_->size(); ++peer) {
      if (peer != board_->rank() && !board_->has_entered(peer, *step)) {
        return;
      }
    }
  }
  board_->ring_members();
}

bool Collective::advance(LoopToken& token) {
  switch (phase_) {
    case Phase::queued:
      return begin(token);
    case Phase::writes:
      if (!write()) {
        return false;
      }
      break;
    case Phase::reads:
      if (!read()) {
        return false;
      }
      break;
    case Phase::ended:
      return false;
  }
  if (!status_.ok() || step_ == run_.steps) {
    end(token);
  }
  return true;
}

bool Collective::begin(LoopToken& token) {
  if (!board_->tickets().serves(token, ticket_)) {
    return false;
  }
  run_.first_step = board_->next_step();
  before_ = board_->history();
  run_.pattern->plan(run_);
  phase_ = Phase::writes;
  begun_.store(true, std::memory_order_relaxed);
  return true;
}

bool Collective::write() {
  const std::uint64_t step = run_.at(step_);
  if (const std::size_t reader = board_->reader_of_slot(step); reader != board_->size()) {
    blame(reader);
    return !status_.ok();
  }
  if (!use_memory(/*reads=*/false)) {
    return true;
  }
  Line& line = board_->line(step);
  line.call = call_;
  line.before = before_;
  line.bytes = given_;
  line.steps = run_.steps;
  board_->enter(step);
  unannounced_ = unannounced_.value_or(step);
  peer_ = 0;
  phase_ = Phase::reads;
  return true;
}

bool Collective::read() {
  for (; peer_ != board_->size(); ++peer_) {
    if (peer_ == board_->rank() || !awaits(peer_)) {
      continue;
    }
    if (!board_->has_entered(peer_, run_.at(step_))) {
      blame(peer_);
      return !status_.ok();
    }
    if (!look_at(peer_)) {
      return true;
    }
  }
  if (!use_memory(/*reads=*/true)) {
    return true;
  }
  ++step_;
  phase_ = Phase::writes;
  return true;
}

bool Collective::awaits(std::size_t peer) const {
  return run_.pattern->reads_from(run_, peer, step_) || (step_ == 0 && run_.pattern->asks(run_, peer));
}

// Compares what a peer says in a step with the own call. Returns false after an error. Some ranks read nothing
// of the others, such as the root of a broadcast. If the call of such a rank does not match, the digests differ
// in a later collective.
bool Collective::look_at(std::size_t peer) {
  const Line& line = board_->line_of(peer, run_.at(step_));
  const std::uint64_t bytes = line.bytes;
  const auto refuse_call = [&] {
    refuse(peer, "called another collective: " + describe_call(line.call, bytes) + ", and this rank called " +
                     describe_call(call_, given_));
    return false;
  };
  if (line.call != call_) {
    return refuse_call();
  }
  if (line.before != before_) {
    refuse(peer, "called other collectives than this rank before this " + describe_call(call_, given_));
    return false;
  }
  if (step_ != 0) {
    return true;
  }
  const std::uint64_t expected = run_.pattern->expected_of(run_, peer);
  const bool is_odd = expected != Pattern::kAny && bytes != expected;
  // The ranks agree on the steps of a gather, whatever each gives, so that only the call fails.
  const bool is_lenient = movement_.kind == Movement::Kind::gather;
  if (is_odd && !is_lenient) {
    return refuse_call();
  }
  if (is_odd) {
    run_.note({peer, bytes, expected});
  }
  if (run_.pattern->asks(run_, peer)) {
    const std::uint64_t steps = line.steps;
    run_.steps = movement_.kind == Movement::Kind::all_to_all ? std::max(run_.steps, steps) : std::max<std::uint64_t>(1, steps);
  }
  return true;
}

void Collective::refuse(std::size_t peer, const std::string& what) {
  status_ = Status(StatusCode::mismatch,
                   "rank " + std::to_string(board_->group_rank_of(peer)) + " " + what +
                       ". All ranks of a group must call its collectives in the same order, with tensors that match. The "
                       "group cannot be used any more; destroy it and create a new one.");
}

// Called while `peer` has not entered a step. Ends the operation if the peer will not do so.
void Collective::blame(std::size_t peer) {
  const shm::State state = board_->state_of(peer);
  if (state == shm::State::open) {
    return;
  }
  // The peer may have entered the step before it changed its state.
  const std::uint64_t step = run_.at(step_);
  const bool can_go_on =
      phase_ == Phase::reads ? board_->has_entered(peer, step) : board_->reader_of_slot(step) == board_->size();
  if (!can_go_on) {
    status_ = Status(
        StatusCode::transport,
        "rank " + std::to_string(board_->group_rank_of(peer)) +
            (state == shm::State::left ? " has left the group" : " has given up the group, because an operation of it failed"));
  }
}

// Lets the pattern read or write the caller's memory. Returns false if the operation cannot go on.
bool Collective::use_memory(bool reads) {
  const MemoryLease::Use use(lease());
  if (!use) {
    lease().wait_until_revoked();
    run_.stores = movement_.owns_destinations;
    if (left_ == nullptr && given_ != 0 && !movement_.owns_sources) {
      status_ = Status(StatusCode::transport, "its caller stopped waiting before all data was sent");
      return false;
    }
  }
  reads ? run_.pattern->read(run_, step_) : run_.pattern->write(run_, step_);
  return true;
}

void Collective::end(LoopToken& token) {
  phase_ = Phase::ended;
  left_.reset();
  if (!status_.ok()) {
    give_up();
    return;
  }
  board_->add(call_, run_.steps);
  board_->tickets().pass(token);
  if (run_.odd) {
    status_ = Status(StatusCode::invalid, "rank " + std::to_string(board_->group_rank_of(run_.odd->peer)) + " sends " +
                                              std::to_string(run_.odd->bytes) + " bytes, and this rank expects " +
                                              std::to_string(run_.odd->expected));
  }
}

std::string Collective::waits_for() const { return begun_.load(std::memory_order_relaxed) ? "" : kEarlierOperations; }

// A caller that does not wait leaves the copies to the background thread.
bool Collective::starts_slowly() const { return bytes_ > kQuickToStart; }

// A rank that has ended enters nothing more, and what it entered before can still be read.
Op::Need Collective::need_of(const Loss& loss) const {
  const auto peer = static_cast<std::size_t>(loss.rank);
  if (phase_ == Phase::reads && peer != board_->rank() && peer >= peer_ && awaits(peer) &&
      !board_->has_entered(peer, run_.at(step_))) {
    return Need::missing;
  }
  if (phase_ == Phase::writes && board_->reader_of_slot(run_.at(step_)) == peer) {
    return Need::missing;
  }
  return phase_ == Phase::ended ? Need::none : Need::relayed;
}

// The peers notice, and need not wait until their own operations time out.
void Collective::cancel(LoopToken& token) {
  token.check();
  give_up();
}

void Collective::give_up() {
  board_->set_state(shm::State::failed);
  board_->ring_members();
}

// If the operation goes on without its caller, it reads from a copy.
void Collective::on_taken_back(After after) noexcept {
  if (after == After::goes_on && !movement_.owns_sources) {
    left_ = movement_.sources.replace_by_copy();
  }
}

}  // namespace torch_ucc::shm
