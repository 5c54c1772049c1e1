// How the recorder learns who called: see bindings/.
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_ucc::trace {

// Returns the number of FlightRecorder::add_site for the place that the calling thread is in. Null:
// sites are not asked for.
using SiteCapture = std::uint32_t (*)();
inline std::atomic<SiteCapture> site_capture{nullptr};

inline std::uint32_t site_of_caller() {
  const SiteCapture capture = site_capture.load(std::memory_order_acquire);
  return capture == nullptr ? 0 : capture();
}

}  // namespace torch_ucc::trace
