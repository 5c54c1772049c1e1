// A prepared call on its way through the engine.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hosts/collective.h"
#include "hosts/levels.h"
#include "messages/channel.h"
#include "messages/messages.h"
#include "ops/call.h"
#include "ops/prepared.h"
#include "shm/board.h"
#include "shm/collective.h"
#include "ucc/collective.h"
#include "ucc/team.h"

namespace torch_ucc {

// `Transport` (shm::Collective, hosts::Collective, Collective, Messages or Local) moves the data. The
// operation keeps the caller's tensors until let_go(), and its buffers until it is destroyed.
template <typename Transport>
class TensorOp final : public Transport {
 public:
  template <typename... Args>
  TensorOp(Call call, Held&& held, Args&&... args)
      : Transport(std::forward<Args>(args)...),
        call_(std::move(call)),
        is_plain_(held.loads.empty() && !held.store),
        held_(std::move(held)) {}

  // Fills the buffers here, since data from a device may have arrived only now.
  Status start(LoopToken& token) override {
    {
      const MemoryLease::Use use(this->lease());
      if (!use && !this->goes_on_alone()) {
        return Status(StatusCode::transport, "its caller stopped waiting before the data was sent");
      }
      try {
        held_.fill();
      } catch (const std::exception& error) {
        return Status(StatusCode::transport, std::string("the data to send could not be copied: ") + error.what());
      }
    }
    return Transport::start(token);
  }

  Status finish() override {
    if (held_.store) {
      held_.store();
    }
    return {};
  }

  // A member that ended before it called this collective has sent nothing for it.
  Op::Need need_of(const Loss& loss) const override {
    return !call_.is_message() && loss.has_not_called(call_.seq) ? Op::Need::missing : Transport::need_of(loss);
  }

  // Inputs cannot be detached if `loads` read them, or if `store` is to run.
  bool detach_inputs() override { return is_plain_ && Transport::detach_inputs(); }
  bool can_detach_inputs() const override { return is_plain_ && Transport::can_detach_inputs(); }

  void let_go() override { held_.let_go(); }

  std::string describe() const override {
    const std::string payload = held_.payload.describe();
    return call_.describe() + (payload.empty() ? "" : " (" + payload + ")");
  }

 protected:
  void on_taken_back(Op::After after) noexcept override {
    if (after == Op::After::goes_on) {
      try {
        held_.fill();
      } catch (const std::exception& error) {  // start() reports it
        held_.loads.emplace_back([why = std::string(error.what())] { throw std::runtime_error(why); });
      }
    }
    Transport::on_taken_back(after);
  }

 private:
  const Call call_;
  const bool is_plain_;
  Held held_;
};
// malloc keeps freed blocks up to this size for the next operation.
static_assert(sizeof(TensorOp<Collective>) <= 1000);

// The transport of an operation that sends nothing, and only loads and stores.
class Local : public Op {
 public:
  explicit Local(std::shared_ptr<UccTeam> team) : team_(std::move(team)) {}

  Status start(LoopToken& /*token*/) override { return {}; }
  State poll(LoopToken& /*token*/) override { return State::ended; }
  Status transport_status() const override { return {}; }
  Need need_of(const Loss& /*loss*/) const override { return Need::none; }
  bool is_drained(LoopToken& /*token*/) override { return true; }
  FailureDomain& domain() const override { return team_->domain(); }

 protected:
  void on_taken_back(After /*after*/) noexcept override {}

 private:
  const std::shared_ptr<UccTeam> team_;
};

// `channel`, `team`, `board` and `levels` belong to the same group; `board` is null if the group does
// not share memory, and `levels` is empty if the group is not divided. The sequence number of `call`
// must be final, because it is the tag of a collective's messages.
inline std::shared_ptr<Op> make_tensor_op(Call call, Prepared&& prepared, const std::shared_ptr<UccTeam>& team,
                                          const std::shared_ptr<Channel>& channel, const std::shared_ptr<shm::Board>& board,
                                          const std::optional<hosts::Levels>& levels) {
  if (prepared.path == Path::memory) {
    shm::Movement movement = std::move(prepared.movement);
    return std::make_shared<TensorOp<shm::Collective>>(std::move(call), std::move(prepared), board, std::move(movement));
  }
  if (prepared.path == Path::levels) {
    shm::Movement movement = std::move(prepared.movement);
    const hosts::UccReduction ucc = prepared.ucc;
    return std::make_shared<TensorOp<hosts::Collective>>(std::move(call), std::move(prepared), team, *levels, std::move(movement),
                                                         ucc);
  }
  if (prepared.path == Path::collective) {
    const ucc_coll_args_t args = prepared.args;
    Pieces pieces = std::move(prepared.pieces);
    return std::make_shared<TensorOp<Collective>>(std::move(call), std::move(prepared), team, args, std::move(pieces));
  }
  if (prepared.path == Path::nothing) {
    return std::make_shared<TensorOp<Local>>(std::move(call), std::move(prepared), team);
  }
  const bool by_user = call.is_message();
  const auto tag = static_cast<std::uint32_t>(by_user ? static_cast<std::uint64_t>(call.tag) : call.seq);
  std::vector<Message> messages = std::move(prepared.messages);
  NextRound next_round = std::move(prepared.next_round);
  return std::make_shared<TensorOp<Messages>>(std::move(call), std::move(prepared), channel,
                                              by_user ? Space::user : Space::collective, tag, std::move(messages),
                                              std::move(next_round));
}

}  // namespace torch_ucc
