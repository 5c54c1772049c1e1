// Stands before the calls of UCX that move messages, in a process that loads this library for all
// before UCX: counts those that have to do with memory of a device, by the device that is current
// in the calling thread.
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "device.h"
#include "memory.h"

namespace fake {
namespace {

using Counts = std::array<std::atomic<int>, kDevices>;
Counts posted;                     // messages from or to memory of a device
Counts driven;                     // calls that drive the worker of the last receive into such memory, since it was posted
std::atomic<void*> worker_driven;  // that worker

void count(Counts& counts) { ++counts.at(static_cast<std::size_t>(current_index())); }

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(::dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD), name));
}

}  // namespace
}  // namespace fake

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED void* ucp_tag_send_nbx(void* endpoint, const void* data, std::size_t count, std::uint64_t tag, const void* param) {
  static auto* const send = fake::real<void*(void*, const void*, std::size_t, std::uint64_t, const void*)>("ucp_tag_send_nbx");
  if (fake::is_of_device(data)) {
    fake::count(fake::posted);
  }
  return send(endpoint, data, count, tag, param);
}

EXPORTED void* ucp_tag_recv_nbx(void* worker, void* data, std::size_t count, std::uint64_t tag, std::uint64_t mask,
                                const void* param) {
  static auto* const receive =
      fake::real<void*(void*, void*, std::size_t, std::uint64_t, std::uint64_t, const void*)>("ucp_tag_recv_nbx");
  if (fake::is_of_device(data)) {
    fake::count(fake::posted);
    for (auto& each : fake::driven) {
      each = 0;
    }
    fake::worker_driven = worker;
  }
  return receive(worker, data, count, tag, mask, param);
}

EXPORTED unsigned ucp_worker_progress(void* worker) {
  static auto* const progress = fake::real<unsigned(void*)>("ucp_worker_progress");
  if (worker == fake::worker_driven) {
    fake::count(fake::driven);
  }
  return progress(worker);
}

EXPORTED int fake_posted(int device) { return fake::posted.at(static_cast<std::size_t>(device)); }
EXPORTED int fake_driven(int device) { return fake::driven.at(static_cast<std::size_t>(device)); }
