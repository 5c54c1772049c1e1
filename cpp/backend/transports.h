// Polls UCC's context and our UCX worker as one Pollable.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "device/direct.h"
#include "progress/pollable.h"
#include "ucc/context.h"
#include "ucx/worker.h"

namespace torch_ucc {

class Transports final : public Pollable {
 public:
  // The arguments must outlive this object. `on_note` is called with each note that arrives. The
  // calling thread has the baton, so `on_note` must neither block nor throw.
  Transports(UccContext& collectives, UcxWorker& messages, const Direct& direct, std::function<void(const std::string&)> on_note)
      : collectives_(collectives), messages_(messages), direct_(direct), on_note_(std::move(on_note)) {}

  Status progress(LoopToken& token) override {
    // Over TCP each poll asks the kernel, so a library with nothing in flight is polled only in
    // some rounds. It is polled at all because a peer may want to connect.
    const bool look = ++rounds_ % kRoundsPerLook == 0;
    const Direct::OnDevice current(token, direct_);
    Status status;
    if (look || collectives_.outstanding(token) != 0) {
      status = collectives_.progress(token);
    }
    if (look || messages_.outstanding(token) != 0) {
      Status messages = messages_.progress(token);
      status = status.ok() ? messages : status;
    }
    if (look) {
      if (const auto note = messages_.take_note(token)) {
        on_note_(*note);
      }
    }
    return status;
  }

 private:
  static constexpr unsigned kRoundsPerLook = 64;

  UccContext& collectives_;
  UcxWorker& messages_;
  const Direct& direct_;
  const std::function<void(const std::string&)> on_note_;
  unsigned rounds_ = 0;
};

}  // namespace torch_ucc
