// What each rank tells the others before any library is started, so that what cannot work is said
// instead of hanging later.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "base/status.h"

namespace torch_ucc {

struct PeerRecord {
  std::string host;     // name for people
  std::string host_id;  // equal on ranks of one machine, also in different containers (the kernel's boot id)
  std::string nonce;    // random: tells this start of the process group from an earlier one
  std::string bell;     // how processes on the same host find this one's bell: see progress/bell.h
  std::string cores;    // it may run on: equal on ranks that share them, see base/core.h
  std::string address;  // of its UCX worker, as bytes
  long pid = 0;         // in the process's own pid namespace: UCC tells processes apart by host and pid
  NamedValues agreed;   // what must be equal on all ranks: settings, library versions

  // Equal on ranks that see each other's processes: those of one host and one pid namespace.
  std::string neighbourhood() const;

  std::string encode() const;
  // Throws StatusError (transport) if the text is not what encode() makes.
  static PeerRecord decode(const std::string& text);
  // Of this process.
  static PeerRecord here(NamedValues agreed);
};

// Throws StatusError (invalid) if these ranks cannot form a group: different settings, or two
// processes that UCC would take for one.
void check_peers(const std::string& group, const std::vector<PeerRecord>& peers);

// The error (invalid) for two ranks of a group that want different settings: names both, and each
// setting with both values.
Status difference(const std::string& group, const PeerRecord& one, int its_rank, const PeerRecord& other, int rank);

// As one text; decode_values() throws StatusError (transport) if it is not what encode_values()
// makes.
std::string encode_values(const NamedValues& values);
NamedValues decode_values(const std::string& text);

// How many of `peers` share the cores of `my_rank`, itself included. Ranks that are kept to
// different ones share none.
int ranks_on_cores(const std::vector<PeerRecord>& peers, int my_rank);

}  // namespace torch_ucc
