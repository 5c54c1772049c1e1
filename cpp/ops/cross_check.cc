#include "ops/cross_check.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/status.h"
#include "ops/tensor_span.h"

namespace torch_ucc {
namespace {

template <std::size_t N>
void put(std::array<char, N>& field, const std::string& text) {
  std::copy_n(text.begin(), std::min(text.size(), N - 1), field.begin());
}

bool has_equal_sizes(c10d::OpType type) {
  using c10d::OpType;
  return type != OpType::GATHER && type != OpType::SCATTER && type != OpType::ALLTOALL && type != OpType::ALLTOALL_BASE &&
         type != OpType::_ALLREDUCE_SPARSE;
}

}  // namespace

Fingerprint Fingerprint::of(const Call& call, const Prepared& prepared) {
  Fingerprint print;
  put(print.op, call.op->name);
  put(print.reduce_op, prepared.payload.reduce_op == nullptr ? "" : prepared.payload.reduce_op);
  if (prepared.payload.dtype != at::ScalarType::Undefined) {
    put(print.dtype, dtype_name(prepared.payload.dtype));
    if (has_equal_sizes(call.op->type)) {
      print.elements = prepared.payload.elements;
    }
  }
  put(print.memory, call.device_memory ? "device" : "");
  print.root = prepared.root;
  print.seq = call.seq;
  return print;
}

std::string Fingerprint::describe() const {
  std::string text = std::string(op.data()) + " seq " + std::to_string(seq);
  if (dtype.front() != '\0') {
    text += std::string(" ") + dtype.data() + (elements == kAny ? "" : "[" + std::to_string(elements) + "]");
  }
  if (reduce_op.front() != '\0') {
    text += std::string(" ") + reduce_op.data();
  }
  if (memory.front() != '\0') {
    text += std::string(" in memory of a ") + memory.data();
  }
  return text + (root == kAny ? "" : " root " + std::to_string(root));
}

// The memory that the messages of the check use. The operation holds it as long as the network may
// touch it.
struct CheckedOp::Exchange {
  struct Verdict {
    std::int64_t differs = -1;  // the rank whose call is not that of rank 0; -1: none
    Fingerprint first;
    Fingerprint other;
  };

  Fingerprint mine;
  std::vector<Fingerprint> all;  // on rank 0, by rank
  Verdict verdict;

  static Message message(Message::Kind kind, int peer, void* data, std::size_t bytes) {
    Message message;
    message.kind = kind;
    message.peer = peer;
    message.data = data;
    message.bytes = bytes;
    return message;
  }

  std::vector<Message> begin(const Call& call) {
    std::vector<Message> messages;
    if (call.group->rank != 0) {
      messages.push_back(message(Message::Kind::send, 0, &mine, sizeof(mine)));
      messages.push_back(message(Message::Kind::receive, 0, &verdict, sizeof(verdict)));
      return messages;
    }
    all.resize(static_cast<std::size_t>(call.group->size));
    for (int rank = 1; rank < call.group->size; ++rank) {
      messages.push_back(message(Message::Kind::receive, rank, &all[static_cast<std::size_t>(rank)], sizeof(Fingerprint)));
    }
    return messages;
  }

  // Called on rank 0, when all fingerprints have arrived. Returns the messages with the result.
  std::vector<Message> answer() {
    verdict.first = mine;
    for (std::size_t rank = 1; rank < all.size() && verdict.differs < 0; ++rank) {
      if (all[rank] != mine) {
        verdict.differs = static_cast<std::int64_t>(rank);
        verdict.other = all[rank];
      }
    }
    std::vector<Message> messages;
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      messages.push_back(message(Message::Kind::send, static_cast<int>(rank), &verdict, sizeof(verdict)));
    }
    return messages;
  }

  Status result() const {
    if (verdict.differs < 0) {
      return {};
    }
    return {StatusCode::invalid, "the ranks of the group do not make the same call: rank 0 calls " + verdict.first.describe() +
                                     ", rank " + std::to_string(verdict.differs) + " calls " + verdict.other.describe()};
  }
};

// The messages of the check; nothing is left to do with their data afterwards.
class CheckedOp::Check final : public Messages {
 public:
  using Messages::Messages;
  std::string describe() const override { return "comparing calls"; }
};

CheckedOp::CheckedOp(const Call& call, const Fingerprint& mine, std::shared_ptr<Op> op, std::shared_ptr<UccTeam> team,
                     std::shared_ptr<Channel> channel)
    : OpDecorator(std::move(op)), team_(std::move(team)), exchange_(std::make_shared<Exchange>()) {
  exchange_->mine = mine;
  NextRound answer;
  if (call.group->rank == 0) {
    answer = [exchange = exchange_, done = false]() mutable {
      return std::exchange(done, true) ? std::vector<Message>() : exchange->answer();
    };
  }
  check_ = std::make_unique<Check>(std::move(channel), Space::collective, static_cast<std::uint32_t>(call.seq),
                                   exchange_->begin(call), std::move(answer));
}

Status CheckedOp::start(LoopToken& token) {
  ticket_ = team_->check_tickets().take(token);
  return check_->start(token);
}

// Operations that passed the check start in the order of their calls, as they would without the
// check.
Op::State CheckedOp::poll(LoopToken& token) {
  if (checked_) {
    const State state = inner().poll(token);
    if (state == State::ended) {
      status_ = inner().transport_status();
    }
    return state;
  }
  if (const State state = check_->poll(token); state != State::ended) {
    return state;
  }
  if (check_->transport_status().ok() && !team_->check_tickets().serves(token, ticket_)) {
    return State::in_flight;
  }
  checked_ = true;
  team_->check_tickets().pass(token);
  status_ = check_->transport_status();
  if (status_.ok()) {
    status_ = exchange_->result();
  }
  if (!status_.ok()) {
    return State::ended;
  }
  status_ = inner().start(token);
  if (status_.ok()) {
    inner().announce();
  }
  return status_.ok() ? State::advanced : State::ended;
}

// The messages of the check ring the bells themselves.
void CheckedOp::announce() const {
  if (checked_) {
    OpDecorator::announce();
  }
}

void CheckedOp::cancel(LoopToken& token) {
  check_->cancel(token);
  if (checked_) {
    OpDecorator::cancel(token);
  }
}

}  // namespace torch_ucc
