// Writes the flight recorder as JSON text.
#pragma once

#include <cstdint>
#include <string>

#include "trace/flight_recorder.h"

namespace torch_ucc::trace {

// Contains the records with an id from `since` on, the groups, the call sites, and two clocks read
// together, so that the records of several processes can be aligned. `reason` says why the dump was
// requested. `first_id` and `last_id` are the range of ids that the ring held before the records
// were read. A record of this range that is missing was being written, or was overwritten.
std::string to_json(const FlightRecorder& recorder, const std::string& reason, std::uint64_t since = 1);

}  // namespace torch_ucc::trace
