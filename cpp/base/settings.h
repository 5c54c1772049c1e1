// The settings of a group. python/torch_ucc/config.py has the defaults and reads the environment;
// C++ code reads no environment variable for a setting. Settings do not change once a group exists.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "base/named_values.h"

namespace torch_ucc {

struct Settings {
  // How long a thread that waits spins and yields, and how long its pauses are: see
  // progress/parker.h. With a `spin` of zero the thread yields from the start.
  std::chrono::microseconds spin{0};
  std::chrono::microseconds yield{0};
  std::chrono::microseconds pause_min{0};
  std::chrono::microseconds pause_max{0};

  // How many threads of this process can run at once. If more ranks than that share these cores, no
  // thread spins.
  int cores = 1;

  // A larger all_reduce, reduce or broadcast through UCC in host memory is posted in pieces of this
  // many bytes, `segment_window` pieces at a time, so that UCC's scratch memory stays in its pool. Other
  // operations that need much memory are posted in pieces one after the other: see ops/prepared.h.
  std::size_t segment_bytes = 0;
  unsigned segment_window = 0;

  // If all ranks of a group are on one host, its collectives go through shared memory (shm/), and
  // not through UCC.
  bool host_path = true;

  // A collective of at least so many bytes goes in levels, if it can and the group spans hosts with
  // several ranks: see hosts/collective.h.
  std::size_t levels_from = 0;

  // Compare every collective call between the ranks before it starts: see ops/cross_check.h.
  bool cross_check = false;

  // Refuse a call whose data contains a NaN: see backend/observe.h.
  bool nan_check = false;

  // wait() blocks until results on a device are complete. If false, wait() makes the current stream
  // wait for the results instead.
  bool blocking_wait = false;

  // Device types for which UCX sends and receives messages in device memory: torch's name of the
  // type, and UCX's name of its memory. Messages of other devices are copied through host memory.
  // See device/direct.h.
  NamedValues direct;

  // Device types for which UCC runs collectives in device memory: torch's name of the type, and
  // UCC's name of its memory. Collectives of other devices are copied through host memory.
  NamedValues native;

  // Keep TCP connections between hosts, over which ranks report the end of a rank: see liveness/.
  bool life_lines = true;

  // How long a group that closes waits for its peers to close, and for UCC and UCX to be destroyed.
  std::chrono::milliseconds close_timeout{0};

  // Name and value of everything that must be equal on all ranks: some of the settings above, and
  // UCC's own variables. If a value differs, creating the group fails with an error that names it.
  NamedValues agreed;

  // Settings for UCX and for UCC's context, from the plan and from the user's Options. The names
  // have no UCX_ or UCC_ prefix. Variables that the user set in the environment are not included.
  NamedValues ucx;
  NamedValues ucc;

  // The part of `ucx` and `ucc` that the user set for this group with Options. A group with such
  // values uses only a context with equal ones; a group without any may use every context.
  NamedValues own_ucx;
  NamedValues own_ucc;

  // Returns own_ucc and own_ucx together, with names for error messages.
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
