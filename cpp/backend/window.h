// One-sided communication: torch's windows, of torch 2.14 and later.
#pragma once

#include "compat/torch_compat.h"

#if TUCC_TORCH_HAS_RECONFIGURE

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/shared_tensors.h"
#include "base/thread_annotations.h"

namespace torch_ucc {

// A tensor of each rank, to which the other ranks write. Has a group of its own, so that it neither
// meets messages of the user nor fails with another group.
//
// The tensor of a rank on the same host is mapped if allocate_tensor() made it: put() stores to it,
// and map_remote_tensor() returns it. Into any other tensor the data go as a message, which is
// stored when its owner calls wait_signal(). In both cases a put also signals: the owner may read
// the data once its wait_signal() for that rank has ended. Each wait_signal() takes one signal, in
// the order in which the rank gave them.
//
// A timeout, or the end of a rank that is waited for, ends the window. A window that is dropped gives
// up the puts that are still under way. Any thread may call.
class UccWindow final : public c10d::Window {
 public:
  using WorkPtr = UccBackend::WorkPtr;

  // `group`: of the window alone, made by all ranks.
  explicit UccWindow(c10::intrusive_ptr<UccBackend> group);
  ~UccWindow() override;

  // Collective. The tensors of the ranks may differ in shape and type. The window keeps the tensor
  // alive, also if it does not own it.
  void tensor_register(const at::Tensor& tensor, bool owning) override;
  // Collective. Waits for all ranks, and for the puts that a wait_signal is receiving, so that
  // nothing is written to the tensor afterwards. Tensors that
  // map_remote_tensor() returned must not be used any more.
  void tensor_deregister() override;

  // Returns, and completes the Work, when the caller may change `tensor` again.
  WorkPtr put(const at::Tensor& tensor, std::int64_t rank, std::int64_t offset, bool async_op,
              const c10d::PutOptions& opts) override;
  at::Tensor map_remote_tensor(std::int64_t rank) override;
  WorkPtr signal(std::int64_t rank, bool async_op, const c10d::SignalOptions& opts) override;
  WorkPtr wait_signal(std::int64_t rank, bool async_op, const c10d::WaitSignalOptions& opts) override;
  // UNIFIED if the tensor of the rank is mapped, else SEPARATE.
  c10d::WindowAttr get_attr(std::int64_t rank) override;

 private:
  class Arrival;

  // The tensor of one rank.
  struct Target {
    at::ScalarType dtype = at::ScalarType::Undefined;
    std::vector<std::int64_t> sizes;
    std::int64_t elements = 0;
    std::shared_ptr<SharedMemory> memory{};  // of a peer
    void* data = nullptr;                    // null: not mapped
  };
  // What a rank is sent for each signal.
  struct Notice {
    std::uint64_t offset = 0;  // in bytes
    std::uint64_t bytes = 0;   // of the message that follows; 0: there is none
    std::uint64_t number = 0;  // of that message: gives its tag
    std::uint64_t registration = 0;
  };

  std::string describe() const;
  [[noreturn]] void refuse(const std::string& what, const std::string& why) const;
  // The tensor of a rank. Throws unless tensors are registered and there is such a rank.
  const Target& target(const std::string& what, std::int64_t rank) const TUCC_REQUIRES(mutex_);
  void notify(int rank, const Notice& notice, std::chrono::milliseconds timeout);
  void send_bytes(int rank, int tag, const void* data, std::size_t bytes, std::chrono::milliseconds timeout);
  void meet();  // waits until all ranks have come here
  // Whether the notice belongs to the tensor that is registered now.
  bool is_present(const Notice& notice) const;
  // Receives the message behind the notice into the registered tensor: calls `post` with that part
  // of it, as bytes. Returns null if the tensor was deregistered. Throws if the message does not fit.
  WorkPtr land(const Notice& notice, const std::function<WorkPtr(at::Tensor)>& post);
  std::vector<WorkPtr> take_landings();
  void wait_for_landings();
  void finish_deregistering();

  const c10::intrusive_ptr<UccBackend> group_;
  const std::chrono::milliseconds timeout_;  // of the group
  std::atomic<std::uint64_t> puts_{0};       // that went as messages

  mutable Mutex mutex_;                        // never held while waiting, or while anything is posted
  at::Tensor tensor_ TUCC_GUARDED_BY(mutex_);  // undefined: none is registered
  std::vector<Target> targets_ TUCC_GUARDED_BY(mutex_);
  // How many tensors were registered. The same on all ranks, since registering is collective.
  std::uint64_t registration_ TUCC_GUARDED_BY(mutex_) = 0;
  // Whether a tensor_deregister() was interrupted, for which the other ranks wait
  bool is_deregistering_ TUCC_GUARDED_BY(mutex_) = false;
  int posting_ TUCC_GUARDED_BY(mutex_) = 0;                // how many threads are in the `post` of land()
  std::vector<WorkPtr> landings_ TUCC_GUARDED_BY(mutex_);  // receives into the tensor that may be under way
};

}  // namespace torch_ucc

#endif  // TUCC_TORCH_HAS_RECONFIGURE
