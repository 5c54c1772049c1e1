// The object c10d talks to: one per process group and process.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/comm_context.h"
#include "backend/options.h"
#include "base/settings.h"
#include "compat/torch_compat.h"
#include "ops/call.h"
#include "ops/prepared.h"
#include "work/work.h"

namespace torch_ucc {

// Collectives of one group must be called in the same order on all its ranks; different groups are independent. Each may be
// called from any thread, never blocks on a peer, and throws before anything is sent if the call is wrong.
class UccBackend final : public c10d::Backend {
 public:
  // Blocks until the other members create theirs, at most for the timeout of `options`; throws StatusError.
  UccBackend(const GroupSpec& group, const Settings& settings, c10::intrusive_ptr<Options> options);
  // Closes nothing: a destructor must not wait for peers. See shutdown().
  ~UccBackend() override = default;

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& opts) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts) override;

  const std::string getBackendName() const override { return "ucc"; }  // NOLINT(readability-const-return-type): c10d's signature
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ms_.store(timeout.count()); }
  void setSequenceNumberForGroup() override {}  // every rank counts from the same start
  std::uint64_t getSequenceNumberForGroup() override { return seq_.load(); }
  c10d::ErrorType getError() override;

  // Both end the group for good, and a second call does nothing. shutdown() lets what is in flight finish and closes with the
  // other ranks, abort() gives it up. Bounded by Settings::close_timeout and two seconds.
  void shutdown() override;
  void abort() override;

  const std::shared_ptr<CommContext>& context() const { return context_; }

 private:
  Call call(const char* op, c10d::OpType type) const;
  // Sends what was prepared. `timeout` not above 0: the group's.
  c10::intrusive_ptr<c10d::Work> launch(Call call, Prepared prepared, std::chrono::milliseconds timeout, bool async_op);
  void close(std::chrono::milliseconds drain);

  const c10::intrusive_ptr<Options> options_;
  const std::shared_ptr<const GroupInfo> info_;
  const std::shared_ptr<CommContext> context_;
  const std::shared_ptr<UccTeam> team_;
  const std::shared_ptr<WorkHome> home_;
  std::atomic<std::int64_t> timeout_ms_;
  std::atomic<std::uint64_t> seq_{0};
  std::atomic<bool> closed_{false};
};

}  // namespace torch_ucc
