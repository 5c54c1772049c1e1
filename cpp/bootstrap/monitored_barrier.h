// A barrier over the store that can name the ranks that did not reach it. It is slow, and uses
// neither UCC nor UCX, so it works while they are stuck.
#pragma once

#include <cstdint>
#include <string>

#include "base/deadline.h"
#include "bootstrap/kv_store.h"

namespace torch_ucc {

struct MonitoredBarrier {
  KvStore& store;
  // Key prefix, new for each group; all barriers of the group write the same keys
  std::string name;
  int rank = 0;
  int size = 1;
  std::uint64_t number = 0;  // of this barrier within the group, from 1
  GiveUp give_up{};
};

// Blocks until all ranks have called it with the same number. If ranks are missing after `limit`,
// rank 0 throws an error that names the first missing rank, or all of them with `wait_all_ranks`.
// The other ranks read this error, or another StatusError that ended the wait of rank 0, from the
// store; they wait 5 s longer than `limit` for it. Throws StatusError (timeout, transport) and what
// give_up throws.
void wait_for_all(const MonitoredBarrier& barrier, milliseconds limit, bool wait_all_ranks);

}  // namespace torch_ucc
