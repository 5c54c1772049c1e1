// Everything that has to be polled for bytes to move, as one.
#pragma once

#include "progress/pollable.h"
#include "ucc/context.h"
#include "ucx/worker.h"

namespace torch_ucc {

class Transports final : public Pollable {
 public:
  // Both must outlive it.
  Transports(UccContext& collectives, UcxWorker& messages) : collectives_(collectives), messages_(messages) {}

  Status progress(LoopToken& token) override {
    Status status = collectives_.progress(token);
    // Without a message of ours in flight there may still be a peer that wants to connect.
    if (messages_.outstanding(token) != 0 || ++turns_ % kTurnsPerLook == 0) {
      Status messages = messages_.progress(token);
      return status.ok() ? messages : status;
    }
    return status;
  }

 private:
  static constexpr unsigned kTurnsPerLook = 64;

  UccContext& collectives_;
  UcxWorker& messages_;
  unsigned turns_ = 0;
};

}  // namespace torch_ucc
