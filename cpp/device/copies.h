// Tensors on a device, by way of host memory: UCC and UCX see their stand-ins on the host, and an
// address of a device only where Direct says so.
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
#include "ops/prepared.h"
#include "work/fence.h"

namespace torch_ucc {

// The copies of one call, to and from its stand-ins. Keeps tensors and stand-ins alive.
//
// They go whole, or in slices, each of which is what one or a few pieces of the operation work on:
// then the device copies the next slices to the host, and those back that have ended, while the
// network has the ones between.
class Copies final : public PieceFlow {
 public:
  Copies(c10::Device device, const Lane& lane);
  // Gives the host memory back. Nothing but the device's copies may still use it: an operation that
  // is given up after some of its pieces have ended keeps its copies for ever.
  ~Copies() override;

  struct Use {
    bool read = false;     // copied to the host in begin()
    bool written = false;  // copied back when its piece has ended, or in end()
  };
  // Makes a stand-in: a plain tensor of the same shape that shares its memory with nothing.
  at::Tensor add(const at::Tensor& tensor, Use use);
  // The tensor that has this stand-in; itself, if it is none.
  const at::Tensor& original_of(const at::Tensor& host) const {
    const auto it = by_host_.find(host.unsafeGetTensorImpl());
    return it == by_host_.end() ? host : twins_[it->second].tensor;
  }

  // The network works on tensors of the device itself, which have no stand-in. The order of the
  // streams is the same: begin(), arrived() and end() then have nothing to copy. The operation
  // keeps them.
  void leave_to(std::shared_ptr<Direct> direct) { direct_ = std::move(direct); }
  // By whom the network is driven then; null if there are only stand-ins.
  Direct* direct() const { return direct_.get(); }
  // The memory of a tensor is used on the stream of the copies back, too, by others than those.
  void keep_for_the_way_back(const at::Tensor& tensor) const;
  // One of its streams.
  const c10::Stream& stream() const { return arrived_.front()->stream(); }

  // Has them go in slices with the pieces of the one operation that works on the stand-ins, if that
  // can be. Before begin().
  void follow(Prepared& prepared);
  bool in_slices() const { return cut_.has_value(); }

  // The copies to the host come behind all that the calling thread has queued on its current
  // stream.
  void come_behind_caller();
  // Queues them. Does not block. Any thread, once. `after_others`: also behind the copies back of
  // operations that have ended.
  void begin(bool after_others = false);
  // Whether the slice of a piece is there, and so all that was queued before begin(). In one slice
  // it is that of every piece.
  std::optional<Status> arrived(std::size_t piece) override;
  // Whether the answer was no when it was last asked for. Any thread.
  bool hold_up() const { return hold_up_.load(std::memory_order_relaxed); }
  // Queues the copies back of the slice that ends with this piece.
  Status ended(std::size_t piece) override;
  // Queues the copies back that are not queued yet. Does not block. Any thread, once.
  void end();
  // No copy is queued from now on; done() comes behind those that are. Any thread. Not beside
  // begin() or end(), and nothing if the device is broken.
  void stop() noexcept;

  // Behind the copies back.
  const std::shared_ptr<Fence>& done() const { return done_; }
  c10::Device device() const { return device_; }

 private:
  struct Twin {
    at::Tensor tensor;
    at::Tensor host;
    at::Tensor block;  // whose memory the stand-in uses
    Use use;
  };
  // A tensor is one or several ranks' parts, and a slice has its share of each part.
  struct Cut {
    std::size_t part;    // bytes
    std::size_t share;   // bytes, of every slice but the last
    std::size_t pieces;  // of every slice but the last
    std::size_t last;    // piece
    bool overlaps;       // what is written is read elsewhere, by another piece
  };

  // Calls `copy(device, host)` for all that a slice has of a tensor.
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
  std::optional<Cut> cut_;                             // in one slice without
  Mutex back_mutex_;                                   // a thread may stop the copies back while another queues them
  std::size_t back_ TUCC_GUARDED_BY(back_mutex_) = 0;  // slices whose copies back are queued, or will not be
  bool stopped_ TUCC_GUARDED_BY(back_mutex_) = false;
  std::atomic<bool> hold_up_{false};
  std::shared_ptr<Direct> direct_;
};

}  // namespace torch_ucc
