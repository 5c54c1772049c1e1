// A place in the queue of a stream, of whatever kind the device is.
#pragma once

#include "base/deadline.h"
#include "compat/torch_compat.h"

namespace torch_ucc {

class Fence {
 public:
  explicit Fence(const c10::Stream& stream) : stream_(stream), event_(stream.device_type()) {}

  // Puts it behind all that is queued on its stream by now. Once; the other members may be called
  // from any thread after that, or if it is never called.
  void raise() { event_.record(stream_); }
  bool raised() const { return event_.was_marked_for_recording(); }

  // What is queued on `stream` from now on runs once the fence was passed. Does not block.
  void block(const c10::Stream& stream) const { event_.block(stream); }
  // The same for the stream that is the calling thread's current one on the fence's device.
  void block_current_stream() const { block(current_stream(stream_.device())); }

  // Whether its stream has come by. One that was never raised holds nobody up.
  bool passed() const { return event_.query(); }
  // Sleeps until then; false if the deadline passed first. Throws what check_interrupt() does.
  bool wait(Deadline deadline) const;

  const c10::Stream& stream() const { return stream_; }

  // What is queued on `later` from now on runs behind all that is queued on `earlier` by now.
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
