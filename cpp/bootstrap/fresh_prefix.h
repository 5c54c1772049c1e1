// A prefix for keys that nobody has used before in this store, the same on all ranks that start a
// group together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "bootstrap/kv_store.h"

namespace torch_ucc {

// A store may hold keys of earlier groups of the same name, also of groups with another number of
// ranks, or of ranks that died as they started: the file of a FileStore outlives its processes.
// So nothing that is found there is trusted. Rank 0 draws a random prefix. Each other rank takes a
// ticket, a number that the store counts, and waits for an answer to that ticket or a later one,
// which cannot be older than the ticket. The first rank of each block of 64 answers the others of
// the block, and rank 0 answers the first ranks.
//
// Cost of a rank: one add, and one get for each look. A rank that answers adds one add for each
// look, and one set where there are new tickets. Not thread safe.
class FreshPrefix {
 public:
  // `name` tells groups apart that start over the same store at the same time. Asks nobody yet: a
  // rank that cannot start says so without waiting for the others.
  FreshPrefix(const std::string& name, int rank, int size);

  // Exchange::wait() under the prefix, with a `name` that no other exchange has. The first exchange
  // finds the prefix, and all ranks have it once it has ended; throws StatusError.
  std::vector<std::string> exchange(KvStore& store, const std::string& name, const std::string& mine, Deadline deadline);

  // Under a name that counts the calls.
  std::vector<std::string> exchange(KvStore& store, const std::string& mine, Deadline deadline);

  // After the first exchange.
  const std::string& text() const { return text_; }

 private:
  // Ranks that take tickets of the same counter.
  struct Queue {
    std::string name;
    std::int64_t answered = 0;  // the last ticket
  };

  void find(KvStore& store, Deadline deadline);
  void answer(KvStore& store);

  const std::string root_;
  const int rank_;
  const int size_;
  int calls_ = 0;
  std::string text_;
  std::vector<Queue> queues_;  // that this rank answers, until all ranks have the prefix
};

}  // namespace torch_ucc
