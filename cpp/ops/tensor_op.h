// A prepared call on its way through the engine.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "ops/call.h"
#include "ops/prepared.h"
#include "ucc/collective.h"

namespace torch_ucc {

// Keeps the tensors alive until the network is done with them: for ever, if the engine gives the operation up.
class TensorOp final : public Collective {
 public:
  TensorOp(std::shared_ptr<UccTeam> team, Call call, Prepared prepared)
      : Collective(std::move(team), prepared.args, prepared.pieces), call_(std::move(call)), prepared_(std::move(prepared)) {}

  Status finish() override {
    if (prepared_.store) {
      prepared_.store();
    }
    return {};
  }

  std::string describe() const override {
    const std::string payload = prepared_.payload.describe();
    return call_.describe() + (payload.empty() ? "" : " (" + payload + ")");
  }

 private:
  const Call call_;
  const Prepared prepared_;
};

}  // namespace torch_ucc
