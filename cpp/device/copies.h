// Tensors on a device, by way of host memory: UCC and UCX see their stand-ins on the host and never an address of a device.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "compat/torch_compat.h"
#include "device/host_blocks.h"
#include "device/lanes.h"
#include "work/fence.h"

namespace torch_ucc {

// The copies of one call, to and from its stand-ins. Keeps tensors and stand-ins alive.
class Copies {
 public:
  Copies(c10::Device device, const Lane& lane);
  // Gives the host memory back. Nothing but the device's copies may still use it.
  ~Copies();
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  struct Use {
    bool read = false;     // copied to the host in begin()
    bool written = false;  // copied back in end()
  };
  // Makes a stand-in: a plain tensor of the same shape that shares its memory with nothing.
  at::Tensor add(const at::Tensor& tensor, Use use);
  // The tensor that has this stand-in.
  const at::Tensor& original_of(const at::Tensor& host) const { return twins_[by_host_.at(host.unsafeGetTensorImpl())].tensor; }

  // Queues the copies to the host behind all that the calling thread has queued on its current stream. Does not block.
  void begin();
  // Whether they have ended, and so all that was queued before them. Any thread.
  bool have_arrived() const { return arrived_->passed(); }
  // Queues the copies back. Does not block. Any thread, once.
  void end();

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

  const c10::Device device_;
  const std::shared_ptr<Fence> arrived_;
  const std::shared_ptr<Fence> done_;
  std::vector<Twin> twins_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> by_host_;
};

}  // namespace torch_ucc
