// The fake accelerator as torch knows it: devices and their streams.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "stream.h"

namespace fake {

inline constexpr c10::DeviceIndex kDevices = 2;

// The calling thread's current device.
c10::DeviceIndex current_index();

Stream& stream_of(const c10::Stream& stream);
// The calling thread's current one.
Stream& current_stream(c10::Device device);

}  // namespace fake
