// A process group whose members can be replaced while the job runs. This is the function
// "reconfigure" of torch 2.14 and later.
#pragma once

#include "compat/torch_compat.h"

#if TUCC_TORCH_HAS_RECONFIGURE

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "backend/backend.h"
#include "base/thread_annotations.h"
#include "bootstrap/kv_store.h"

namespace torch_ucc {

// Passes each call on to the group of the present members, which is another UccBackend after each
// reconfigure(). Has no members before the first one, and after one that failed: then every
// operation throws. Any thread may call.
//
// A handle names the object of one process. Members meet in the store of the group, below the uuid.
class Reconfigurable final : public c10d::Backend {
 public:
  using WorkPtr = UccBackend::WorkPtr;
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  using Member = c10::intrusive_ptr<UccBackend>;

  // What a new set of members has in common, and which rank this process is.
  struct Members {
    StorePtr store;  // with keys of these members only
    int rank = 0;
    int size = 0;
    std::string name;
    std::chrono::milliseconds timeout{0};
  };
  // Creates the group. Blocks until all members have called it, at most for the timeout.
  using Make = std::function<Member(const Members&)>;

  // `rank` and `size` are what the group reports until it has members.
  Reconfigurable(StorePtr store, int rank, int size, std::string name, std::chrono::milliseconds timeout, Make make);

  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override { return handle_; }
  // Gives up the operations in flight, leaves the present members and joins the new ones. Blocks
  // until all new members have joined; the Work that it returns has ended. If an argument is
  // refused (ValueError, or a uuid that was used before), the group is as before. After any other
  // error the group has no members. Neither abort() nor shutdown() ends a call that waits for
  // members; its timeout does.
  WorkPtr reconfigure(const c10d::ReconfigureOptions& opts) override;

  // The group of the present members; null if there is none.
  Member current() const;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override { return now()->broadcast(tensors, opts); }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override { return now()->allreduce(tensors, opts); }
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return now()->allreduce_sparse(tensors, opts);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    return now()->allreduce_coalesced(tensors, opts);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override { return now()->reduce(tensors, opts); }
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return now()->allgather(outputs, inputs, opts);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override {
    return now()->_allgather_base(output, input, opts);
  }
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return now()->allgather_coalesced(outputs, inputs, opts);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return now()->allgather_into_tensor_coalesced(outputs, inputs, opts);
  }
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    return now()->gather(outputs, inputs, opts);
  }
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts) override {
    return now()->gather_single(output, input, opts);
  }
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override {
    return now()->scatter(outputs, inputs, opts);
  }
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) override {
    return now()->reduce_scatter(outputs, inputs, opts);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    return now()->_reduce_scatter_base(output, input, opts);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override {
    return now()->reduce_scatter_tensor_coalesced(outputs, inputs, opts);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                        std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& opts) override {
    return now()->alltoall_base(output, input, output_splits, input_splits, opts);
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    return now()->alltoall(outputs, inputs, opts);
  }
  WorkPtr send(Tensors& tensors, int destination, int tag) override { return now()->send(tensors, destination, tag); }
  WorkPtr recv(Tensors& tensors, int source, int tag) override { return now()->recv(tensors, source, tag); }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override { return now()->recvAnysource(tensors, tag); }
  WorkPtr barrier(const c10d::BarrierOptions& opts) override { return now()->barrier(opts); }
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override {
    now()->monitoredBarrier(opts, wait_all_ranks);
  }

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { now()->startCoalescing(); }
  WorkPtr endCoalescing() override { return now()->endCoalescing(); }

  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const StorePtr& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts) override {
    return now()->split(store, ranks, opts);
  }
  bool supportsShrinking() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<std::int64_t>& ranks_to_exclude, int shrink_flags,
                                           const c10::intrusive_ptr<c10d::Backend::Options>& opts) override {
    return now()->shrink(ranks_to_exclude, shrink_flags, opts);
  }
  c10::intrusive_ptr<c10d::Backend> merge(const StorePtr& store, const c10::intrusive_ptr<c10d::Backend::Options>& opts,
                                          const int& rank, const int& size) override {
    return now()->merge(store, opts, rank, size);
  }

  bool supportsWindow() const override { return true; }
  c10::intrusive_ptr<c10d::Window> new_window(const std::optional<at::Tensor>& tensor) override {
    return now()->new_window(tensor);
  }
  bool supportsTensorAlloc(c10::DeviceIndex device) override { return device < 0; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;  // NOLINT(google-runtime-int): c10d's signature

  const std::string getBackendName() const override { return "ucc"; }  // NOLINT(readability-const-return-type): c10d's signature
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return now()->getBackendOptions(); }
  // Of the present and of all later members.
  void setTimeout(std::chrono::milliseconds timeout) override;
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout) override { now()->addEphemeralTimeout(timeout); }
  void registerAbortHook(std::int64_t hook_id, c10d::AbortHook hook) override;
  void unregisterAbortHook(std::int64_t hook_id) override;
#if TUCC_TORCH_ASKS_BACKENDS
  bool supportsAbortHooks() const override { return true; }
  bool isInitialized() override { return current() != nullptr; }
#endif
  void setSequenceNumberForGroup() override {}  // every rank counts from the same start
  std::uint64_t getSequenceNumberForGroup() override { return now()->getSequenceNumberForGroup(); }
  // COMM_ERROR after a reconfigure() that failed.
  c10d::ErrorType getError() override;
  void enableCollectivesTiming() override {}
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    now()->registerOnCompletionHook(std::move(hook));
  }
  void waitForPendingWorks() override { now()->waitForPendingWorks(); }

  // Ends the group for good.
  void shutdown() override;
  // Ends the group of the present members. reconfigure() can replace it.
  void abort() override;

 private:
  // The present members. Throws if there are none.
  Member now() const;
  // Returns the handles by rank. Throws if an argument is wrong.
  std::vector<std::string> checked(const c10d::ReconfigureOptions& opts) const;
  // Throws unless this process and the first member were given the same members.
  void agree(KvStore& store, const std::vector<std::string>& handles, const std::string& place, Deadline deadline) const;
  std::string describe() const { return "group '" + name_ + "'"; }

  const StorePtr store_;
  const std::string name_;
  const std::string handle_;
  const Make make_;

  Mutex reconfiguring_;  // one reconfigure() at a time
  mutable Mutex mutex_;  // never held while waiting
  Member current_ TUCC_GUARDED_BY(mutex_);
  Member leaving_ TUCC_GUARDED_BY(mutex_);                    // while reconfigure() gives it up, or shutdown() closes it
  std::vector<std::string> members_ TUCC_GUARDED_BY(mutex_);  // of current_, by rank
  std::set<std::int64_t> used_ TUCC_GUARDED_BY(mutex_);       // uuids
  // By id. Shared, since a copy or the end of a function of Python would take the GIL under the mutex
  std::map<std::int64_t, std::shared_ptr<const c10d::AbortHook>> abort_hooks_ TUCC_GUARDED_BY(mutex_);
  std::chrono::milliseconds timeout_ TUCC_GUARDED_BY(mutex_);
  bool running_ TUCC_GUARDED_BY(mutex_) = false;  // a reconfigure()
  bool failed_ TUCC_GUARDED_BY(mutex_) = false;   // the last reconfigure()
  bool ended_ TUCC_GUARDED_BY(mutex_) = false;
};

}  // namespace torch_ucc

#endif  // TUCC_TORCH_HAS_RECONFIGURE
