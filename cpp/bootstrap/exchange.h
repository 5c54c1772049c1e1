// An allgather over the store: each rank contributes one small value.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "bootstrap/kv_store.h"
#include "bootstrap/relay.h"

namespace torch_ucc {

// The last rank of each block to arrive packs the values of the block into one
// (bootstrap/packed.h), and all ranks read these packed values. So a store with one thread can
// serve thousands of ranks: it could not if each rank read the value of each other rank.
//
// Cost of a rank: one set, one add and one get for each poll; with several blocks, also one get_all
// of one value for each block. The last rank of a block adds one get_all of the values of the block
// and one set; with several blocks it also adds one add, and the last rank of all one more set.
// Each key is written once. Not thread safe.
class Exchange {
 public:
  // Ranks in a block. With 10,000 ranks, each rank reads 157 packed values, and a rank that packs
  // reads 64 values more.
  static constexpr int kBlock = 64;

  // Publishes `mine` under `name`, which no earlier exchange of these ranks may have used. Throws
  // StatusError.
  Exchange(KvStore& store, std::string name, int rank, int size, const std::string& mine);

  // Returns the values of all ranks in the order of ranks, or nothing while some are missing.
  // Blocks only for the round trips to the store. Throws StatusError.
  // With a `relay`, one process of each host reads the store for all there, and the others ask the
  // store only once a second. Each exchange needs a relay with a name of its own.
  std::optional<std::vector<std::string>> poll(Relay* relay = nullptr);

  // Polls until all values are there, and calls `between` between two polls. When the deadline has
  // passed, throws StatusError (timeout) that names the missing ranks.
  std::vector<std::string> wait(Deadline deadline, const GiveUp& between = {}, Relay* relay = nullptr);

 private:
  std::string key(int rank) const;
  std::string arrived_in(int block) const;
  std::vector<std::string> keys_of(int block) const;
  std::string missing_ranks();
  std::optional<std::vector<std::string>> read();
  std::optional<std::vector<std::string>> receive(Relay& relay) const;

  KvStore& store_;
  const std::string name_;
  const std::string mine_;
  const int rank_;
  const int size_;
  const int blocks_;
  Deadline look_;  // when to read the store in spite of a relay
};

}  // namespace torch_ucc
