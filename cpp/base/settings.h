// What can be set, with its default and unit beside it. Immutable once a group exists; filled at
// the edge (python/torch_ucc/config.py reads options and environment once), never from an
// environment variable in here.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace torch_ucc {

using NamedValues = std::vector<std::pair<std::string, std::string>>;

// Filled by torch_ucc.config, which has the defaults.
struct Settings {
  // How a thread that waits goes from spinning to sleeping: see progress/parker.h. A `spin` of zero
  // yields from the start.
  std::chrono::microseconds spin{0};
  std::chrono::microseconds yield{0};
  std::chrono::microseconds pause_min{0};
  std::chrono::microseconds pause_max{0};

  // How many threads of this process can run at once. With more ranks than that on this host nobody
  // spins.
  int cores = 1;

  // A larger allreduce or reduce is posted as pieces of this many bytes, `segment_window` of them
  // at a time: UCC's scratch memory then stays in its pool. What else needs much memory for one
  // operation goes in pieces one after the other: ops/prepared.h.
  std::size_t segment_bytes = 0;
  unsigned segment_window = 0;

  // Compare every collective call between the ranks before it starts: see ops/cross_check.h.
  bool cross_check = false;

  // Refuse a call whose data has a NaN: see backend/observe.h.
  bool nan_check = false;

  // wait() returns only once results on a device are there, instead of having the current stream
  // wait for them.
  bool blocking_wait = false;

  // Devices of which point-to-point messages go from and to their own memory: torch's name of the
  // type, and UCX's of its memory. Of all others they go by way of the host. See device/direct.h.
  NamedValues direct;

  // Devices of which collectives work in their own memory: torch's name of the type, and UCC's of
  // its memory. Likewise.
  NamedValues native;

  // Keep TCP connections between hosts over which the end of a rank is told: see liveness/.
  bool life_lines = true;

  // How long a group that closes waits for its peers to close too, and then for the library to let
  // go.
  std::chrono::milliseconds close_timeout{0};

  // Name and value of everything that must be equal on all ranks (some of the above, UCC's own
  // variables). A difference is an error at init that names it.
  NamedValues agreed;

  // What the plan of the job and the user's Options tell UCX and UCC's context, by their names
  // without UCX_ and UCC_. What the user set in the environment is not in it.
  NamedValues ucx;
  NamedValues ucc;

  // What the user set for this group alone, as Options: it is among the above too, and its group
  // shares a context with groups that set the same.
  NamedValues own_ucx;
  NamedValues own_ucc;

  // Both, by names for people.
  NamedValues own() const {
    NamedValues all;
    for (const auto& [name, value] : own_ucc) {
      all.emplace_back(name + " of Options(ucc=)", value);
    }
    for (const auto& [name, value] : own_ucx) {
      all.emplace_back(name + " of Options(ucx=)", value);
    }
    return all;
  }
};

}  // namespace torch_ucc
