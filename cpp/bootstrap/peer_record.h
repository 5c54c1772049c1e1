// The record that each rank publishes before UCC starts. The ranks compare their records, so that a
// wrong configuration is an error at once and not a hang later.
#pragma once

#include <string>
#include <vector>

#include "base/named_values.h"
#include "base/status.h"

namespace torch_ucc {

struct PeerRecord {
  std::string host;  // name for people
  // Equal on ranks of one machine, also in different containers (the kernel's boot id)
  std::string host_id;
  std::string nonce;     // random: differs between two starts of the process group
  std::string bell;      // address of the bell, for processes on the same host: see progress/bell.h
  std::string arena;     // address of the shared memory for collectives: see shm/arena.h; may be empty
  std::string cores;     // the cores that the rank may run on, as text to compare: see base/core.h
  std::string recorder;  // address of the flight recorder: see trace/flight_recorder.h
  std::string messages;  // "ucx" if this rank needs UCX for messages, because of device memory
  // In the process's own pid namespace: UCC tells processes apart by host and pid
  long pid = 0;
  NamedValues agreed;  // what must be equal on all ranks: settings, library versions

  // Returns a text that is equal on ranks which see each other's processes: ranks on one host and
  // in one pid namespace. A rank without a bell address is alone.
  std::string neighbourhood() const;

  std::string encode() const;
  // Throws StatusError (transport) if the text is not what encode() makes.
  static PeerRecord decode(const std::string& text);
  // Returns the record of this process. The caller fills in `bell`, `arena`,
  // `recorder` and `messages`.
  static PeerRecord here(NamedValues agreed);
};

// Throws StatusError (invalid) if these ranks cannot form a group, because their settings differ or
// because UCC would take two of the processes for one.
void check_peers(const std::string& group, const std::vector<PeerRecord>& peers);

// Returns the error (invalid) for two ranks of a group that have different settings. Its message
// names both ranks and, for each setting that differs, both values.
Status difference(const std::string& group, const PeerRecord& one, int its_rank, const PeerRecord& other, int rank);

// Returns how many of `peers`, `my_rank` included, are on the host of `my_rank` and may run on
// exactly the same cores. Ranks with other sets of cores do not count, even if the sets overlap.
int ranks_on_cores(const std::vector<PeerRecord>& peers, int my_rank);

}  // namespace torch_ucc
