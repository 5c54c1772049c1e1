// Memory of the devices, which the host cannot touch, and memory of the host that the devices know.
// Both are filled with a pattern when they are freed, and whoever writes there later is found out.
#pragma once

#include <cstddef>
#include <vector>

#include "stream.h"

namespace fake {

// An address that only stands for memory: who follows it on the host crashes.
void* device_allocate(std::size_t bytes, Stream& stream);
// As a caching allocator has it: used anew by the next allocation for its stream, behind all that
// is queued there until then and behind what the streams have queued by now for which it was
// recorded.
void device_free(void* address);
void device_record(void* address, Stream& stream);
// Where kernels find the bytes.
void* reach(const void* address);

// From now on the host can follow them, as on a device with one memory for both.
void show_to_host();
bool is_of_device(const void* address);

void* pinned_allocate(std::size_t bytes);
void pinned_free(void* address);
bool is_pinned(const void* address);

// How often freed memory was written to, as far as it was looked at: when it is used again, and by
// this call. Nothing may be under way.
int faults();

}  // namespace fake
