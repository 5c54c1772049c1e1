// Allgather of one small value a rank over the store.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "bootstrap/kv_store.h"

namespace torch_ucc {

// The last of each block of ranks to arrive packs their values into one (bootstrap/packed.h), which
// is what all read: a store of one thread serves a job of thousands so, but not the values of each
// to each.
//
// Cost a rank: one set, one add, one get per poll, and one get_all of a value a block, where there
// are several. The last of a block adds one get_all of its values, one set and one add, and the
// last of all one set. Keys are written once. Not thread safe.
class Exchange {
 public:
  // Ranks: of 10,000 each reads 157 values, and who packs reads no more than that.
  static constexpr int kBlock = 64;

  // Publishes `mine` under `name`, which must be new among these ranks. Throws StatusError.
  Exchange(KvStore& store, std::string name, int rank, int size, const std::string& mine);

  // Non-blocking but for the round trips to the store. The values of all ranks by rank, once all
  // are there. Throws StatusError.
  std::optional<std::vector<std::string>> poll();

  // Polls until the deadline, and calls `between` after each look that has not found all; throws
  // StatusError (timeout) that names the ranks which are missing.
  std::vector<std::string> wait(Deadline deadline, const GiveUp& between = {});

 private:
  std::string key(int rank) const;
  std::string arrived_in(int block) const;
  std::vector<std::string> keys_of(int block) const;
  std::string missing_ranks();

  KvStore& store_;
  const std::string name_;
  const int size_;
  const int blocks_;
};

}  // namespace torch_ucc
