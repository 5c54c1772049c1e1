// The streams that a group has of its own.
#pragma once

#include <map>

#include "base/thread_annotations.h"
#include "compat/torch_compat.h"

namespace torch_ucc {

// The two streams of a group on one device. The copy of a result thus need not wait for work of the
// caller that the next operation waits for.
struct Lane {
  explicit Lane(c10::Device device) : from_device(stream_of(device)), to_device(stream_of(device)) {}

  const c10::Stream from_device;
  const c10::Stream to_device;

 private:
  static c10::Stream stream_of(c10::Device device) {
    return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  }
};

// The lanes of a group, one for each device that the group has used. Any thread.
class Lanes {
 public:
  const Lane& of(c10::Device device) {
    const MutexLock lock(mutex_);
    return lanes_.try_emplace(device.index(), device).first->second;
  }

 private:
  Mutex mutex_;  // threads may call at once
  std::map<c10::DeviceIndex, const Lane> lanes_ TUCC_GUARDED_BY(mutex_);
};

}  // namespace torch_ucc
