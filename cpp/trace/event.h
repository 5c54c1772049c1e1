// What the flight recorder holds of one operation: numbers, and pointers to texts that are never
// freed.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "base/status.h"

namespace torch_ucc::trace {

enum class State : std::uint8_t {
  issued,     // called, not yet posted
  posted,     // in flight
  completed,  // ended well
  failed,     // ended with an error, or was given up
};

// How an operation reaches its peers. `levels`: through memory on each host, and by UCC between
// hosts. `native`: through UCC, in device memory. `none`: the operation sends nothing itself.
enum class Route : std::uint8_t { none, memory, levels, ucc, native, messages, store };
inline constexpr std::array kRoutes{Route::none,   Route::memory,   Route::levels, Route::ucc,
                                    Route::native, Route::messages, Route::store};

inline const char* name(State state) {
  switch (state) {
    case State::issued:
      return "issued";
    case State::posted:
      return "posted";
    case State::completed:
      return "completed";
    case State::failed:
      return "failed";
  }
  return "unknown";
}

inline const char* name(Route route) {
  switch (route) {
    case Route::none:
      return "none";
    case Route::memory:
      return "memory";
    case Route::levels:
      return "levels";
    case Route::ucc:
      return "ucc";
    case Route::native:
      return "native";
    case Route::messages:
      return "messages";
    case Route::store:
      return "store";
  }
  return "unknown";
}

inline const char* name(StatusCode code) {
  switch (code) {
    case StatusCode::ok:
      return "ok";
    case StatusCode::invalid:
      return "invalid";
    case StatusCode::unsupported:
      return "unsupported";
    case StatusCode::timeout:
      return "timeout";
    case StatusCode::peer_gone:
      return "peer_gone";
    case StatusCode::transport:
      return "transport";
    case StatusCode::mismatch:
      return "mismatch";
    case StatusCode::closed:
      return "closed";
    case StatusCode::internal:
      return "internal";
  }
  return "unknown";
}

// What is known of an operation when it is called. The texts must live as long as the process,
// because a dump may read them at any time. Times are nanoseconds of Clock.
struct CallRecord {
  std::uint64_t seq = 0;  // collectives and messages of a group are counted separately
  const char* op = "";
  const char* dtype = "";
  const char* reduce_op = "";
  std::int64_t input_elements = 0;
  std::int64_t output_elements = 0;
  std::int64_t bytes = 0;  // the larger of the two sides
  std::int64_t issued_ns = 0;
  std::uint32_t group = 0;  // see FlightRecorder::add_group
  std::uint32_t site = 0;   // see FlightRecorder::add_site; 0: not recorded
  std::int32_t peer = -1;
  std::int32_t root = -1;
  std::uint32_t tag = 0;
  bool is_message = false;
  Route route = Route::none;
  std::uint16_t reserved = 0;  // so that there is no padding: the record is copied word by word
};
static_assert(std::is_trivially_copyable_v<CallRecord> && sizeof(CallRecord) % sizeof(std::uint64_t) == 0);

// A call record with the times of its post, its first wait and its end.
struct Event : CallRecord {
  std::int64_t posted_ns = 0;  // 0: not yet
  std::int64_t ended_ns = 0;
  // When the first wait() began; 0: no wait() so far, or only after the end
  std::int64_t awaited_ns = 0;
  StatusCode result = StatusCode::ok;

  State state() const {
    if (ended_ns != 0) {
      return result == StatusCode::ok ? State::completed : State::failed;
    }
    return posted_ns != 0 ? State::posted : State::issued;
  }
};

}  // namespace torch_ucc::trace
