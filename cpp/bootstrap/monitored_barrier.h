// A barrier over the store that can say who did not come. Slow, and independent of everything that
// may be stuck.
#pragma once

#include <cstdint>
#include <string>

#include "base/deadline.h"
#include "bootstrap/kv_store.h"

namespace torch_ucc {

struct MonitoredBarrier {
  KvStore& store;
  std::string name;  // prefix of its keys, new for each group; one key a rank, written again by each barrier
  int rank = 0;
  int size = 1;
  std::uint64_t number = 0;  // of this barrier within the group, from 1
  GiveUp give_up{};
};

// Blocks until all ranks called it with the same number. Past `limit` rank 0 names the first rank
// that is missing, or with `wait_all_ranks` all of them, and the others learn it from there, as
// they learn why rank 0 gave up. Throws StatusError (timeout, transport) and what give_up throws.
void wait_for_all(const MonitoredBarrier& barrier, milliseconds limit, bool wait_all_ranks);

}  // namespace torch_ucc
