// An operation on stand-ins: begins once they hold what the device had, or the first slice of it, and brings back what they hold
// at its end that its pieces have not brought back before. One on tensors of the device itself begins at the same place of its
// stream, and posts everything when it begins.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "device/copies.h"
#include "progress/op.h"
#include "progress/turns.h"

namespace torch_ucc {

// The operations of a group begin in the order in which they were called, whatever they come behind: so those on the host take
// part in the turns as well, without copies, once the group has seen a device.
class StagedOp final : public Op {
 public:
  // `copies` have begun, or are null. `turns` are those of the group.
  StagedOp(std::shared_ptr<Op> op, std::shared_ptr<Copies> copies, std::shared_ptr<Turns> turns)
      : op_(std::move(op)), copies_(std::move(copies)), turns_(std::move(turns)) {
    set_recording(op_->recording());
  }

  Status start(LoopToken& token) override;
  State poll(LoopToken& token) override;
  Status transport_status() const override { return status_; }
  Status doubt() const override { return op_->doubt(); }
  int source() const override { return op_->source(); }
  Status finish() override;
  void announce() const override;
  bool is_announced() const override;
  microseconds patience() const override { return op_->patience(); }
  bool starts_slowly() const override { return copies_ == nullptr && op_->starts_slowly(); }
  std::string waits_for() const override;
  Scope& scope() const override { return op_->scope(); }
  void record_wait(Clock::time_point since) const override { op_->record_wait(since); }
  void record_end(StatusCode result) const override { op_->record_end(result); }
  std::string describe() const override { return op_->describe(); }

 private:
  Direct* direct() const { return copies_ == nullptr ? nullptr : copies_->direct(); }
  bool has_arrived();
  Status begin(LoopToken& token);
  State poll_begun(LoopToken& token);

  const std::shared_ptr<Op> op_;
  const std::shared_ptr<Copies> copies_;
  const std::shared_ptr<Turns> turns_;
  std::uint64_t ticket_ = 0;
  std::atomic<bool> arrived_{false};
  std::atomic<bool> begun_{false};
  Status status_;
};

}  // namespace torch_ucc
