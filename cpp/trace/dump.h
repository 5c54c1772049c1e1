// The recorder as JSON text.
#pragma once

#include <cstdint>
#include <string>

#include "trace/flight_recorder.h"

namespace torch_ucc::trace {

// Records with an id from `since` on, the groups, the places in the program, and two clocks read
// together, by which the records of several processes can be laid side by side. `reason` says why
// it was asked for. `first_id` to `last_id` are those that had their place when it began: of them
// one is missing only if a thread was just writing it, or took its place meanwhile.
std::string to_json(const FlightRecorder& recorder, const std::string& reason, std::uint64_t since = 1);

}  // namespace torch_ucc::trace
