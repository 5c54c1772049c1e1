#include "hosts/all_reduce.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "shm/collective.h"
#include "ucc/coll_args.h"
#include "ucc/collective.h"

namespace torch_ucc::hosts {
namespace {

using Kind = shm::Movement::Kind;

// Shares begin at a cache line of the whole data, if its beginning does.
constexpr std::size_t kAligned = 64;

// The shares of a piece, by place on the host: one for each row, and nothing for the other ranks.
std::vector<Part> shares_of(const Part& piece, std::size_t rows, std::size_t ranks) {
  const std::size_t even = (piece.bytes + rows - 1) / rows;
  const std::size_t each = (even + kAligned - 1) / kAligned * kAligned;
  std::vector<Part> shares(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::size_t begin = rank < rows ? std::min(piece.bytes, rank * each) : piece.bytes;
    const std::size_t end = rank < rows ? std::min(piece.bytes, begin + each) : piece.bytes;
    shares[rank] = {static_cast<char*>(piece.data) + begin, end - begin};
  }
  return shares;
}

}  // namespace

template <typename Operation>
class AllReduce::Step final : public Operation {
 public:
  using Operation::Operation;
  std::string describe() const override { return "a part of an all_reduce between hosts"; }

  bool is_started = false;
  bool has_ended = false;
};

struct AllReduce::Piece {
  // `shares` has the share of each rank of the host. `memory` has room for the share of this rank.
  Piece(const Levels& levels, const Reduction& reduction, std::vector<Part> shares, std::unique_ptr<char[]> memory)
      : own(std::move(memory)),
        reduce(levels.board, {.kind = Kind::reduce_scatter,
                              .type = reduction.type,
                              .op = reduction.op,
                              .sources = shm::Parts(shares),
                              .destinations = only(levels, shares),
                              .owns_destinations = true}),
        gather(levels.board, {.kind = Kind::all_gather,
                              .sources = only(levels, shares),
                              .destinations = shm::Parts(shares),
                              .owns_sources = true}) {
    const std::size_t bytes = shares[levels.board->rank()].bytes;
    if (levels.row != nullptr && bytes != 0) {
      Pieces whole;
      whole.total = bytes / reduction.element_size;
      whole.element_size = reduction.element_size;
      exchange = std::make_unique<Step<Collective>>(
          levels.row, allreduce_in_place_args(own.get(), whole.total, reduction.ucc_type, reduction.ucc_op, UCC_MEMORY_TYPE_HOST),
          std::move(whole));
    }
  }
  shm::Parts only(const Levels& levels, const std::vector<Part>& shares) const {
    return shm::Parts(Part{own.get(), shares[levels.board->rank()].bytes});
  }
  bool is_exchanged() const { return reduce.has_ended && (exchange == nullptr || exchange->has_ended); }
  bool is_drained(LoopToken& token) const { return exchange == nullptr || !exchange->is_started || exchange->is_drained(token); }

  std::unique_ptr<char[]> own;
  Step<shm::Collective> reduce;
  std::unique_ptr<Step<Collective>> exchange;  // null if this rank is in no row, or if its share is empty
  Step<shm::Collective> gather;
};

AllReduce::AllReduce(std::shared_ptr<UccTeam> team, const Levels& levels, const Reduction& reduction)
    : team_(std::move(team)),
      levels_(levels),
      reduction_(reduction),
      piece_(std::max(reduction.piece / reduction.element_size, std::size_t{1}) * reduction.element_size),
      number_((reduction.memory.bytes + piece_ - 1) / piece_) {}

AllReduce::~AllReduce() = default;

Status AllReduce::start(LoopToken& token) {
  if (team_->handle(token) == nullptr) {
    return Status(StatusCode::closed, "the group was shut down");
  }
  ticket_ = team_->tickets().take(token);
  poll(token);
  return status_.code() == StatusCode::transport ? Status() : status_;  // poll() reports errors of the transport
}

Op::State AllReduce::poll(LoopToken& token) {
  if (!begun_.load(std::memory_order_relaxed)) {
    if (!team_->tickets().serves(token, ticket_)) {
      return State::in_flight;
    }
    begun_.store(true, std::memory_order_relaxed);
  }
  bool advanced = false;
  for (bool goes_on = true; goes_on && status_.ok();) {
    goes_on = start_next(token);
    for (std::size_t i = first_; i < made_ && status_.ok(); ++i) {
      goes_on = poll_piece(token, slot(i)) || goes_on;
    }
    while (first_ < made_ && slot(first_).gather.has_ended) {
      ++first_;
    }
    advanced = advanced || goes_on;
  }
  if (!status_.ok()) {
    return State::ended;
  }
  if (first_ != number_) {
    return advanced ? State::advanced : State::in_flight;
  }
  if (!std::exchange(has_ended_, true)) {  // start() may have called this before
    team_->tickets().pass(token);
  }
  return State::ended;
}

// The ranks of a host must take their steps on the board in one order: reduce piece 0, reduce piece
// 1, gather piece 0, reduce piece 2, gather piece 1, and so on. Starts the next one if it can start.
bool AllReduce::start_next(LoopToken& token) {
  if (next_ == 2 * number_) {
    return false;
  }
  // The first and the last step come without their counterparts
  const std::size_t last = number_ - 1;
  const bool gathers = next_ != 0 && (next_ % 2 == 0 || next_ == 2 * last + 1);
  if (gathers) {
    const std::size_t number = next_ % 2 == 0 ? next_ / 2 - 1 : last;
    if (!slot(number).is_exchanged()) {
      return false;
    }
    ++next_;
    return begin(token, slot(number).gather);
  }
  if (made_ >= first_ + kWindow || !make_piece(token, made_)) {
    return false;
  }
  ++next_;
  return begin(token, slot(made_++).reduce);
}

// Makes a piece in its slot. The earlier piece there must have ended. Returns false after an error.
bool AllReduce::make_piece(LoopToken& token, std::size_t number) {
  const MemoryLease::Use use(lease());
  char* memory = static_cast<char*>(reduction_.memory.data);
  if (!use) {
    if (!goes_on_alone()) {
      fail(Status(StatusCode::transport, "its caller has its memory back"));
      return false;
    }
    memory = left_.get();
  }
  std::unique_ptr<Piece>& slot = slots_[number % kWindow];
  std::unique_ptr<char[]> own;
  if (slot != nullptr && slot->is_drained(token)) {
    own = std::move(slot->own);
  } else {
    if (slot != nullptr) {
      undrained_.push_back(std::move(slot));
    }
    own = std::make_unique_for_overwrite<char[]>(std::min(piece_, reduction_.memory.bytes) / levels_.rows + 2 * kAligned);
  }
  const std::size_t at = number * piece_;
  const Part piece{memory + at, std::min(piece_, reduction_.memory.bytes - at)};
  slot = std::make_unique<Piece>(levels_, reduction_, shares_of(piece, levels_.rows, levels_.board->size()), std::move(own));
  return true;
}

bool AllReduce::poll_piece(LoopToken& token, Piece& piece) {
  bool any = go_on(token, piece.reduce);
  if (piece.exchange != nullptr && status_.ok()) {
    if (piece.reduce.has_ended && !piece.exchange->is_started) {
      any = begin(token, *piece.exchange) || any;
    }
    any = (status_.ok() && go_on(token, *piece.exchange)) || any;
  }
  return (status_.ok() && go_on(token, piece.gather)) || any;
}

template <typename Operation>
bool AllReduce::begin(LoopToken& token, Step<Operation>& step) {
  step.is_started = true;
  fail(step.start(token));
  step.announce();
  return true;
}

template <typename Operation>
bool AllReduce::go_on(LoopToken& token, Step<Operation>& step) {
  if (!step.is_started || step.has_ended) {
    return false;
  }
  const State state = step.poll(token);
  if (state == State::ended) {
    step.has_ended = true;
    fail(step.transport_status());
    if (Status doubt = step.doubt(); doubt_.ok()) {
      doubt_ = std::move(doubt);
    }
  }
  return state != State::in_flight;
}

// Once a step has failed, the peers wait for data that never comes. So every error is one of the
// transport, which fails the group, or says that the ranks called different operations.
void AllReduce::fail(const Status& status) {
  if (status_.ok() && !status.ok()) {
    status_ = status.code() == StatusCode::mismatch ? status : Status(StatusCode::transport, status.message());
  }
}

std::string AllReduce::waits_for() const { return begun_.load(std::memory_order_relaxed) ? "" : kEarlierOperations; }

bool AllReduce::starts_slowly() const { return reduction_.memory.bytes > kQuickToStart; }

void AllReduce::cancel(LoopToken& token) {
  token.check();
  levels_.board->set_state(shm::State::failed);
  levels_.board->ring_members();
}

bool AllReduce::is_drained(LoopToken& token) {
  const auto is_drained = [&](const std::unique_ptr<Piece>& piece) { return piece == nullptr || piece->is_drained(token); };
  return std::all_of(slots_.begin(), slots_.end(), is_drained) && std::all_of(undrained_.begin(), undrained_.end(), is_drained);
}

// UCC works in memory of the operation, so only the steps on the host use the memory of the caller.
// What follows them uses a copy.
void AllReduce::on_taken_back(After after) noexcept {
  if (after == After::goes_on) {
    left_ = std::make_unique_for_overwrite<char[]>(reduction_.memory.bytes);
    std::memcpy(left_.get(), reduction_.memory.data, reduction_.memory.bytes);
  }
  for (const auto& piece : slots_) {
    if (piece != nullptr) {
      piece->reduce.take_back(after);
      piece->gather.take_back(after);
    }
  }
}

}  // namespace torch_ucc::hosts
