// A prepared call on its way through the engine.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/call.h"
#include "ops/prepared.h"
#include "ucc/collective.h"
#include "ucc/team.h"
#include "ucx/channel.h"
#include "ucx/messages.h"

namespace torch_ucc {

// `Transport` is what carries it. Keeps the tensors alive until the network is done with them: for ever, if the engine gives the
// operation up.
template <typename Transport>
class TensorOp final : public Transport {
 public:
  template <typename... Args>
  TensorOp(Call call, Held&& held, Args&&... args)
      : Transport(std::forward<Args>(args)...), call_(std::move(call)), held_(std::move(held)) {}

  // What is to be sent may have come only now, from a device.
  Status start(LoopToken& token) override {
    try {
      held_.fill();
    } catch (const std::exception& error) {
      return Status(StatusCode::transport, std::string("what it sends could not be loaded: ") + error.what());
    }
    return Transport::start(token);
  }

  Status finish() override {
    if (held_.store) {
      held_.store();
    }
    return {};
  }

  std::string describe() const override {
    const std::string payload = held_.payload.describe();
    return call_.describe() + (payload.empty() ? "" : " (" + payload + ")");
  }

 private:
  const Call call_;
  Held held_;
};
// malloc keeps what is no larger at hand for the next one.
static_assert(sizeof(TensorOp<Collective>) <= 1000);

// Nothing to send: only to load and to store.
class Local : public Op {
 public:
  explicit Local(std::shared_ptr<UccTeam> team) : team_(std::move(team)) {}

  Status start(LoopToken& /*token*/) override { return {}; }
  State poll(LoopToken& /*token*/) override { return State::ended; }
  Status transport_status() const override { return {}; }
  Scope& scope() const override { return team_->scope(); }

 private:
  const std::shared_ptr<UccTeam> team_;
};

// `channel` is that of the group of `team`. The sequence number of `call` must be final: collectives tell their messages apart
// by it.
inline std::shared_ptr<Op> make_tensor_op(Call call, Prepared&& prepared, const std::shared_ptr<UccTeam>& team,
                                          const std::shared_ptr<Channel>& channel) {
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
