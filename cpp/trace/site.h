// How the flight recorder gets the call site of an operation: bindings/ provides the function.
#pragma once

#include <atomic>
#include <cstdint>

namespace torch_ucc::trace {

// Returns the number that FlightRecorder::add_site gave to the call site of the calling thread.
// Null if call sites are not recorded.
using SiteCapture = std::uint32_t (*)();
inline std::atomic<SiteCapture> site_capture{nullptr};

inline std::uint32_t site_of_caller() {
  const SiteCapture capture = site_capture.load(std::memory_order_acquire);
  return capture == nullptr ? 0 : capture();
}

}  // namespace torch_ucc::trace
