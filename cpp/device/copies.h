// Copies between tensors on a device and their stand-ins in host memory. UCC and UCX work on the
// stand-ins. They see addresses on a device only where Direct allows it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/thread_annotations.h"
#include "compat/torch_compat.h"
#include "device/direct.h"
#include "device/host_blocks.h"
#include "device/lanes.h"
#include "device/slices.h"
#include "ops/prepared.h"
#include "work/fence.h"

namespace torch_ucc {

// The copies of one call, to and from its stand-ins. Keeps the tensors and the stand-ins alive.
//
// The copies are made whole or in slices. A slice is what one or a few pieces of the operation work
// on. With slices, the device copies the next slices to the host and the finished slices back,
// while the network works on the slices in between.
class Copies final : public PieceFlow {
 public:
  Copies(c10::Device device, const Lane& lane);
  // Gives the host memory back to HostBlocks. Only copies that are queued on the device may still
  // use it.
  ~Copies() override;

  struct Use {
    bool read = false;     // copied to the host in begin()
    bool written = false;  // copied back when its piece has ended, or in end()
  };
  // Makes a stand-in for `tensor`: a plain tensor of the same shape that shares its memory with
  // nothing.
  at::Tensor add(const at::Tensor& tensor, Use use);
  // The tensor that has the stand-in `host`, or `host` itself if it is not a stand-in.
  const at::Tensor& original_of(const at::Tensor& host) const {
    const auto it = by_host_.find(host.unsafeGetTensorImpl());
    return it == by_host_.end() ? host : twins_[it->second].tensor;
  }

  // For a call on tensors in device memory that have no stand-ins, because the network works on
  // them. begin(), arrived() and end() keep the order of the streams, but have nothing to copy. The
  // operation keeps these tensors alive.
  void leave_to(std::shared_ptr<Direct> direct) { direct_ = std::move(direct); }
  // What leave_to() was given; null if there are only stand-ins.
  Direct* direct() const { return direct_.get(); }
  // Says that other work than these copies uses the memory of `tensor` on the stream of the copies
  // back. The memory is not reused before that work has ended.
  void keep_for_the_way_back(const at::Tensor& tensor) const;
  // The stream of the copies to the host.
  const c10::Stream& stream() const { return arrived_.front()->stream(); }

  // Makes the copies in slices that follow the pieces of `prepared`, if possible. `prepared` must
  // be the only operation on the stand-ins. Called before begin().
  void follow(Prepared& prepared);
  bool in_slices() const { return slices_.has_value(); }

  // Puts the copies to the host behind everything that the calling thread has queued on its current
  // stream. Called before begin().
  void come_behind_caller();
  // Queues the copies to the host. Does not block. Any thread, once. With `after_others`, they also
  // come behind the copies back that earlier operations of the group have queued. Throws if the
  // device fails.
  void begin(bool after_others = false);
  // Whether the slice of this piece is on the host, and thus everything that was queued before
  // begin() has run. Without slices, the answer is the same for every piece. Returns ok, an error
  // of the device, or nothing while the slice is not there.
  std::optional<Status> arrived(std::size_t piece) override;
  // Whether the last call of arrived() found that the slice was not there. Any thread.
  bool hold_up() const { return hold_up_.load(std::memory_order_relaxed); }
  // If this piece is the last of its slice, queues the copies back of the slice.
  Status ended(std::size_t piece) override;
  // Queues the copies back that are not queued yet. Does not block. Any thread, once.
  void end();
  // After stop(), no copy is queued. done() comes behind the copies that are queued already, unless
  // the device is broken. Any thread, but not while another thread is in begin() or end().
  void stop() noexcept;

  // The fence behind the copies back.
  const std::shared_ptr<Fence>& done() const { return done_; }
  c10::Device device() const { return device_; }

 private:
  struct Twin {
    at::Tensor tensor;
    at::Tensor host;
    at::Tensor block;  // the stand-in uses the memory of this block
    Use use;
  };
  // Calls `copy(device, host)` for each share that a slice has of a tensor.
  template <typename Copy>
  void each_of(const Twin& twin, std::size_t slice, const Copy& copy) const;
  void bring_back_next() TUCC_REQUIRES(back_mutex_);
  bool overlaps_by(std::size_t part) const;

  const c10::Device device_;
  std::optional<Fence> called_;
  const std::shared_ptr<Fence> done_;
  std::vector<std::shared_ptr<Fence>> arrived_;  // by slice
  std::vector<Twin> twins_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> by_host_;
  std::optional<Slices> slices_;  // empty: one slice
  // A piece writes memory that another piece reads
  bool overlaps_ = false;
  // A thread may stop the copies back while another queues them
  Mutex back_mutex_;
  // How many slices have their copies back queued
  std::size_t back_ TUCC_GUARDED_BY(back_mutex_) = 0;
  bool stopped_ TUCC_GUARDED_BY(back_mutex_) = false;
  std::atomic<bool> hold_up_{false};
  std::shared_ptr<Direct> direct_;
};

}  // namespace torch_ucc
