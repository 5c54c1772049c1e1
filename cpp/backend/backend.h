// The object that c10d calls: one for each process group and process.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/coalescing.h"
#include "backend/comm_context.h"
#include "backend/observe.h"
#include "backend/options.h"
#include "backend/timeout_extensions.h"
#include "base/settings.h"
#include "base/thread_annotations.h"
#include "compat/torch_compat.h"
#include "device/staged_op.h"
#include "device/staging.h"
#include "ops/call.h"
#include "ops/prepared.h"
#include "progress/effect_order.h"
#include "trace/flight_recorder.h"
#include "work/errors.h"
#include "work/work.h"

namespace torch_ucc {

// All ranks of a group must call its collectives in the same order. Different groups are
// independent. Any thread may call. A wrong call throws before anything is sent. An asynchronous
// call does not wait for its own operation; a synchronous call (asyncOp false) may wait until its
// operation has ended.
class UccBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Options = torch_ucc::Options;

  // Creates the group at `place`, which was found with these settings. Blocks until the other
  // members create theirs, at most for the timeout of the group. Throws StatusError.
  UccBackend(const Place& place, const Settings& settings);
  // Closes nothing: a destructor must not wait for peers. See shutdown().
  ~UccBackend() override = default;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  // Of a sparse tensor as well
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
#if TUCC_TORCH_HAS_RECONFIGURE
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts) override;
#endif
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  // Likewise, with a timeout of their own; if it is not above 0, that of the group.
  WorkPtr send(Tensors& tensors, int destination, int tag, std::chrono::milliseconds timeout);
  WorkPtr recv(Tensors& tensors, int source, int tag, std::chrono::milliseconds timeout);
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  // Blocks until all ranks have called it, and throws if they do not within the timeout. Uses only
  // the store, so it also works after an operation of the group has failed.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  // The calls that a thread makes between startCoalescing() and endCoalescing() start together at
  // the end. One Work stands for all of them and completes when all have ended.
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;
  // For an exception between startCoalescing() and endCoalescing(): drops the calls of this thread,
  // and nothing of them is sent. Does nothing if there is no coalescing.
  void dropCoalescing(const std::string& why);

  // Creates a group of some ranks of this group. Returns null if this rank is not among them. Only
  // the members of the new group are involved. It normally shares the context of this group.
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  // Creates a group of all ranks of this group except some, on a context of its own. The ranks that
  // are left out take no part and may have ended. If `shrink_flags` is not 0, operations in flight
  // in this group are given up first.
  bool supportsShrinking() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<std::int64_t>& ranks_to_exclude, int shrink_flags,
                                           const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  // Creates a group of `size` processes that meet in `store`. This process gets the rank `rank`. The
  // processes may come from different groups and worlds; they are a new world.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts, const int& rank,
                                          const int& size) override;

  const std::string getBackendName() const override { return "ucc"; }  // NOLINT(readability-const-return-type): c10d's signature
#if TUCC_TORCH_HAS_RECONFIGURE
  bool supportsWindow() const override { return true; }
  // Collective. See UccWindow.
  c10::intrusive_ptr<c10d::Window> new_window(const std::optional<at::Tensor>& tensor) override;
#endif
  // Tensors on the CPU, in memory that other ranks of the host can map.
  bool supportsTensorAlloc(c10::DeviceIndex device) override { return device < 0; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;  // NOLINT(google-runtime-int): c10d's signature

  // A copy: torch changes what it gets here to the options of a group that it splits off.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
#if TUCC_TORCH_HAS_RECONFIGURE
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout) override { extensions_.grant(timeout); }
  // The hooks run once: in abort(), or on a thread of Delivery when the group fails.
  void registerAbortHook(std::int64_t hook_id, c10d::AbortHook hook) override { abort_hooks_->add(hook_id, std::move(hook)); }
  void unregisterAbortHook(std::int64_t hook_id) override { abort_hooks_->remove(hook_id); }
#endif
#if TUCC_TORCH_ASKS_BACKENDS
  bool supportsAbortHooks() const override { return true; }
#endif
  void setSequenceNumberForGroup() override {}  // every rank counts from the same start
  std::uint64_t getSequenceNumberForGroup() override { return seq_.load(); }
  c10d::ErrorType getError() override;

  // Does nothing, since every operation is timed: see UccWork::getDuration().
  void enableCollectivesTiming() override {}
  // Called once, before the first operation. The hook runs on a thread of Delivery after each
  // operation, however the operation ended.
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  // Blocks until every operation has ended and the hook has run for it. Throws when the timeout of
  // the group passes before.
  void waitForPendingWorks() override;

  // End the group for good; a second call does nothing. shutdown() waits for the operations in
  // flight and closes together with the other ranks. abort() gives the operations up. Both return
  // within Settings::close_timeout and two seconds.
  void shutdown() override;
  void abort() override;
  // Reconfigurable calls these two when it replaces the members of this group. give_up() ends the
  // operations in flight with an error, here and on the other ranks. leave() then closes the group.
  // It waits for the other ranks only if `all_leave` says that they close it now, too.
  void give_up(const std::string& why);
  void leave(bool all_leave);

  const std::string& name() const { return info_->name; }
  // Throws if the group cannot be used: in a forked child, after its end, and after a failure.
  // `what()`, which names the call in the error, is only called then.
  template <typename What>
  void require_usable(const What& what) const {
    if (const std::optional<Status> reason = why_unusable()) {
      throw_for_user(Status(reason->code(), what() + ": " + reason->message()));
    }
  }
  const std::shared_ptr<CommContext>& context() const { return context_; }
  // Indexed by operation::index_of().
  const std::array<trace::CountersByRoute, WorkHome::kOperations>& counters() const { return home_->counters; }
  std::uint32_t number() const { return home_->group; }  // in the flight recorder
  // Whether collectives of tensors on the host go in levels, and whether each host has as many ranks.
  bool has_levels() const { return membership_.levels.has_value(); }
  bool has_even_levels() const { return has_levels() && membership_.levels->layout->is_even(); }
  // Why collectives of tensors on the host do not go through memory that the ranks share; empty if
  // they do.
  std::string why_not_through_memory() const { return membership_.board != nullptr ? "" : context_->why_no_board(); }

 private:
  // An operation on its way to the engine.
  struct Outgoing {
    std::shared_ptr<Op> op;  // null: nothing is left to do
    std::shared_ptr<Copies> copies{};
    UccWork::Parts parts{};
    Effects effects{};
    EffectOrder::Earlier after{};
    Deadline deadline{};
    bool async_op = false;
    bool is_collective = false;
  };

  // The reason why the group cannot be used any more; null while it can be used.
  const Status* failure() const;
  std::optional<Status> why_unusable() const;

  // Calls `body` with a Call, which every error of this call names. If `body` throws, drops the
  // coalescing that this thread has open.
  template <typename Body>
  WorkPtr serve(const Operation& op, const Body& body) {
    return serve_message(op, Call::kNoPeer, 0, body);
  }
  template <typename Body>
  WorkPtr serve_message(const Operation& op, int peer, int tag, const Body& body) {
    try {
      Call call = this->call(op, peer, tag);
      return body(call);
    } catch (const std::exception& error) {
      drop_for(error);
      throw;
    }
  }
  // Drops the coalescing that this thread has open, if any: one of its calls was refused with
  // `error`.
  void drop_for(const std::exception& error);
  void drop(Coalescing& coalescing, const std::string& why);
  Call call(const Operation& op, int peer = Call::kNoPeer, int tag = 0) const;
  // The staging of a collective that moves data, and of one that reduces. `tensors` belong to the
  // call; the first of them decides in which memory UCC works.
  Staging moving(Call& call, at::TensorList tensors);
  Staging reducing(Call& call, at::TensorList tensors, const c10d::ReduceOp& op);
  // The deadline of an operation. If `timeout` is not above 0, the timeout of the group is used.
  Deadline deadline_of(std::chrono::milliseconds timeout, Clock::time_point now);
  // Sends what was prepared, or keeps it for the end of the coalescing.
  WorkPtr launch(Call call, Prepared&& prepared, Staging&& staging, std::chrono::milliseconds timeout, bool async_op);
  // Launches several operations as one batch with one Work.
  WorkPtr launch_all(const Call& call, std::vector<Prepared>&& all, Staging&& staging, std::chrono::milliseconds timeout,
                     bool async_op);
  // Gives the call its sequence number, and reports it to the bell, the flight recorder, the
  // counters and the profiler.
  trace::Recording record(Call& call, const Prepared& prepared, const UccWork::Parts& parts, trace::Route route,
                          Clock::time_point now);
  trace::Route route_of(const Call& call, const Prepared& prepared) const;
  void put_in_order(const Call& call, c10::ArrayRef<Prepared*> all, Outgoing& outgoing);
  void wait_for_earlier(const Call& call, c10::ArrayRef<Prepared*> all);
  // Null if nothing has to be done.
  std::shared_ptr<Op> make_op(Call&& call, Prepared&& prepared, trace::Recording recording);
  trace::Counters& counters_of(const Operation& op, trace::Route route);
  void tell_hook_of(Op& op, const UccWork::Parts& parts);
  UccWork::Parts parts_of(const Operation& op, trace::Route route);
  WorkPtr receive(const Call& call, Tensors& tensors, std::chrono::milliseconds timeout);
  // Adds the operation to the coalescing that this thread has open, or submits it to the engine.
  WorkPtr dispatch(Outgoing&& outgoing);
  WorkPtr submit(Outgoing&& outgoing);
  WorkPtr add_to(Coalescing& coalescing, Outgoing&& outgoing);
  Coalescing* open_coalescing() const;
  void close(std::chrono::milliseconds drain);
  std::vector<c10::intrusive_ptr<UccBackend>> windows();
  // Creates a group of `ranks`, which are ranks of this group. Returns null if this rank is not
  // among them. `apart`: on a context of its own.
  c10::intrusive_ptr<c10d::Backend> part(std::shared_ptr<KvStore> store, const std::string& name, const std::vector<int>& ranks,
                                         const c10::intrusive_ptr<c10d::Backend::Options>& opts, bool apart = false);
  // A new group has the options of UCC and UCX that this group has. Throws if `opts` names others;
  // `what` is the new group in the error.
  void require_same_libraries(const c10::intrusive_ptr<c10d::Backend::Options>& opts, const char* what) const;
  // That of `opts`, or that of this group if `opts` does not set it.
  std::chrono::milliseconds timeout_of(const c10::intrusive_ptr<c10d::Backend::Options>& opts) const;
  c10::intrusive_ptr<UccBackend> made(const GroupSpec& group) const;

  const GroupSpec spec_;
  const std::shared_ptr<CommContext> context_;
  const Membership membership_;
  const std::shared_ptr<const GroupInfo> info_;
  const std::string coalesced_name_;
  const std::shared_ptr<WorkHome> home_;
  std::shared_ptr<CompletionHook> hook_;  // null: none
  const std::shared_ptr<AbortHooks> abort_hooks_ = std::make_shared<AbortHooks>();
  TimeoutExtensions extensions_;
  Lanes lanes_;
  EffectOrder order_;
  const StagedOp::Line collectives_;
  const StagedOp::Line messages_;
  std::atomic<std::int64_t> timeout_ms_;
  std::atomic<std::uint64_t> seq_{0};
  std::atomic<std::uint64_t> message_seq_{0};
  std::atomic<std::uint64_t> monitored_barriers_{0};
  std::atomic<bool> closed_{false};
  std::atomic<bool> aborted_{false};
  Mutex windows_mutex_;
  std::vector<c10::weak_intrusive_ptr<UccBackend>> windows_ TUCC_GUARDED_BY(windows_mutex_);  // their groups
};

}  // namespace torch_ucc
