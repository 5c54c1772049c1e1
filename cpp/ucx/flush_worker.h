// Waits until everything that a UCX worker has sent has arrived.
#pragma once

#include <string>

#include "base/status.h"
#include "progress/op.h"
#include "ucx/worker.h"

namespace torch_ucc {

// Ends when everything that this process has sent has reached its peers. All processes must do this
// before a worker is destroyed.
class FlushWorker final : public Op {
 public:
  FlushWorker(UcxWorker& worker, FailureDomain& domain) : worker_(worker), domain_(domain) {}

  Status start(LoopToken& token) override;
  State poll(LoopToken& token) override;
  Status transport_status() const override { return status_; }
  FailureDomain& domain() const override { return domain_; }
  std::string describe() const override { return "sending what was left before closing"; }

 private:
  UcxWorker& worker_;
  FailureDomain& domain_;
  void* request_ = nullptr;
  Status status_;
};

}  // namespace torch_ucc
