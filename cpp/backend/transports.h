// Polls all that carries data as one Pollable: UCC's context, our UCX worker, and the mail.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "device/direct.h"
#include "messages/mixed_carrier.h"
#include "progress/pollable.h"
#include "shm/mail.h"
#include "ucc/context.h"
#include "ucx/worker.h"

namespace torch_ucc {

class Transports final : public Pollable {
 public:
  // The arguments must outlive this object. `on_note` is called with each note that arrives. The
  // calling thread has the baton, so `on_note` must neither block nor throw.
  Transports(UccContext& collectives, const Direct& direct, std::function<void(const std::string&)> on_note)
      : collectives_(collectives), direct_(direct), on_note_(std::move(on_note)) {}

  // Adds what carries messages. It must outlive this object.
  void use(LoopToken& token, UcxWorker& worker) {
    token.check();
    worker_ = &worker;
  }
  void use(LoopToken& token, shm::Mail& mail) {
    token.check();
    mail_ = &mail;
  }
  void use(LoopToken& token, MixedCarrier& mixed) {
    token.check();
    mixed_ = &mixed;
  }

  Status progress(LoopToken& token) override {
    // Over TCP each poll asks the kernel, so what has nothing in flight is polled only in
    // some rounds. It is polled at all because a peer may want to connect.
    const bool look = ++rounds_ % kRoundsPerLook == 0;
    const Direct::OnDevice current(token, direct_);
    Status status;
    if (look || collectives_.outstanding(token) != 0) {
      status = collectives_.progress(token);
    }
    poll(token, worker_, look, status);
    poll(token, mail_, look, status);
    if (mixed_ != nullptr && mixed_->outstanding(token) != 0) {
      Status polled = mixed_->progress(token);
      status = status.ok() ? std::move(polled) : status;
    }
    return status;
  }

 private:
  template <typename Messages>
  void poll(LoopToken& token, Messages* messages, bool look, Status& status) {
    if (messages == nullptr || (!look && messages->outstanding(token) == 0)) {
      return;
    }
    Status polled = messages->progress(token);
    if (status.ok()) {
      status = std::move(polled);
    }
    if (const auto note = look ? messages->take_note(token) : std::nullopt) {
      on_note_(*note);
    }
  }

  static constexpr unsigned kRoundsPerLook = 64;

  UccContext& collectives_;
  UcxWorker* worker_ = nullptr;
  shm::Mail* mail_ = nullptr;
  MixedCarrier* mixed_ = nullptr;
  const Direct& direct_;
  const std::function<void(const std::string&)> on_note_;
  unsigned rounds_ = 0;
};

}  // namespace torch_ucc
