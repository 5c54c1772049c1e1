// Several operations that start together and end together: coalesced calls.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "progress/op.h"

namespace torch_ucc {

// Starts its parts in the order in which they were added. Ends when all parts have ended, with the
// first error of a part; a transport error of a part ends the batch at once. The parts have neither
// deadlines nor completions.
class OpBatch final : public Op {
 public:
  OpBatch(FailureDomain& domain, std::string name) : domain_(domain), name_(std::move(name)) {}

  // Adds a part. Must be called before the batch is posted.
  void add(std::shared_ptr<Op> part) { parts_.push_back(std::move(part)); }
  bool empty() const { return parts_.empty(); }

  Status start(LoopToken& token) override;
  State poll(LoopToken& token) override;
  Status doubt() const override;
  Status transport_status() const override { return status_; }
  Status finish() override;
  void announce() const override;
  bool is_announced() const override;
  microseconds patience() const override;
  bool starts_slowly() const override;
  std::string waits_for() const override;
  Need need_of(const Loss& loss) const override;
  bool detach_inputs() override;
  bool can_detach_inputs() const override;
  bool has_detached_inputs() const override;
  void cancel(LoopToken& token) override;
  bool is_drained(LoopToken& token) override;
  void let_go() override;
  FailureDomain& domain() const override { return domain_; }
  void record_wait(Clock::time_point since) const override;
  void record_end(StatusCode result) const override;
  std::string describe() const override;

 protected:
  void on_taken_back(After after) noexcept override;

 private:
  void note(const Op& part, const Status& status);

  FailureDomain& domain_;
  const std::string name_;
  std::vector<std::shared_ptr<Op>> parts_;
  std::vector<Op*> under_way_;
  Status status_;
};

}  // namespace torch_ucc
