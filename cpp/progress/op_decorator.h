// An operation that wraps another operation. It does what the inner operation does, except for the
// members that a derived class overrides.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "progress/op.h"

namespace torch_ucc {

// Forwards all virtual members to the inner operation, so that no derived class can forget one. The
// inner operation is never posted itself.
class OpDecorator : public Op {
 public:
  explicit OpDecorator(std::shared_ptr<Op> inner) : inner_(std::move(inner)) { set_recording(inner_->recording()); }

  Status start(LoopToken& token) override { return inner_->start(token); }
  State poll(LoopToken& token) override { return inner_->poll(token); }
  Status transport_status() const override { return inner_->transport_status(); }
  Status doubt() const override { return inner_->doubt(); }
  int source() const override { return inner_->source(); }
  Status finish() override { return inner_->finish(); }
  void announce() const override { inner_->announce(); }
  bool is_announced() const override { return inner_->is_announced(); }
  microseconds patience() const override { return inner_->patience(); }
  bool starts_slowly() const override { return inner_->starts_slowly(); }
  std::string waits_for() const override { return inner_->waits_for(); }
  Need need_of(const Loss& loss) const override { return inner_->need_of(loss); }
  bool detach_inputs() override { return inner_->detach_inputs(); }
  bool can_detach_inputs() const override { return inner_->can_detach_inputs(); }
  bool has_detached_inputs() const override { return inner_->has_detached_inputs(); }
  void cancel(LoopToken& token) override { inner_->cancel(token); }
  bool is_drained(LoopToken& token) override { return inner_->is_drained(token); }
  void let_go() override { inner_->let_go(); }
  FailureDomain& domain() const override { return inner_->domain(); }
  std::string describe() const override { return inner_->describe(); }
  void record_wait(Clock::time_point since) const override { inner_->record_wait(since); }
  void record_end(StatusCode result) const override { inner_->record_end(result); }

 protected:
  void on_taken_back(After after) noexcept override { inner_->take_back(after); }

  Op& inner() { return *inner_; }
  const Op& inner() const { return *inner_; }

 private:
  const std::shared_ptr<Op> inner_;
};

}  // namespace torch_ucc
