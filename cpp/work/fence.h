// A place in the queue of a stream, on any kind of device.
#pragma once

#include "base/deadline.h"
#include "compat/torch_compat.h"

namespace torch_ucc {

class Fence {
 public:
  explicit Fence(const c10::Stream& stream) : stream_(stream), event_(stream.device_type()) {}

  // Puts the fence behind everything that is queued on its stream now. Called at most once. Other
  // members may be called from any thread after raise(), or if raise() is never called.
  void raise() { event_.record(stream_); }
  bool raised() const { return event_.was_marked_for_recording(); }

  // Everything that is queued on `stream` from now on runs after the fence was passed. Does not
  // block the calling thread.
  void block(const c10::Stream& stream) const { event_.block(stream); }
  // Calls block() for the calling thread's current stream on the fence's device.
  void block_current_stream() const { block(current_stream(stream_.device())); }

  // Whether the stream has reached the fence. True if the fence was never raised.
  bool passed() const { return event_.query(); }
  // Sleeps until the fence is passed. Returns false if the deadline passed first. Throws what
  // check_interrupt() throws.
  bool wait(Deadline deadline) const;

  const c10::Stream& stream() const { return stream_; }

  // Everything that is queued on `later` from now on runs after everything that is queued on
  // `earlier` now.
  static void order(const c10::Stream& earlier, const c10::Stream& later) {
    Fence fence(earlier);
    fence.raise();
    fence.block(later);
  }

  static c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

 private:
  const c10::Stream stream_;
  c10::Event event_;
};

}  // namespace torch_ucc
