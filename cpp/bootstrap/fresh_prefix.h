// A key prefix that no earlier group has used in this store. All ranks that start a group together
// get the same prefix.
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
// Cost of a rank: one add, and one get for each poll. A rank that answers also needs, for each poll
// and queue, one add and, if there are new tickets, one set. Not thread safe.
class FreshPrefix {
 public:
  // `name` tells groups apart that start over the same store at the same time. Does not use the
  // store, so a rank that cannot start reports its error without waiting for the others.
  FreshPrefix(const std::string& name, int rank, int size);

  // Runs an Exchange under the prefix and returns the values of all ranks in the order of ranks.
  // `name` must differ from the names of all other exchanges. The first exchange also finds the
  // prefix; when it has ended, all ranks have the prefix. Calls `give_up` between two polls. Throws
  // StatusError, and what `give_up` throws.
  std::vector<std::string> exchange(KvStore& store, const std::string& name, const std::string& mine, Deadline deadline,
                                    const GiveUp& give_up = {});

  // Likewise, with the number of the call as the name. So all ranks must make these calls in the
  // same order.
  std::vector<std::string> exchange(KvStore& store, const std::string& mine, Deadline deadline);

  // Returns the prefix. Empty before the first exchange.
  const std::string& text() const { return text_; }

 private:
  // Ranks that take tickets of the same counter.
  struct Queue {
    std::string name;
    std::int64_t answered = 0;  // the last ticket that got an answer
  };

  void find(KvStore& store, Deadline deadline);
  void answer(KvStore& store);

  const std::string root_;
  const int rank_;
  const int size_;
  int calls_ = 0;
  std::string text_;
  // The queues that this rank answers; empty once all ranks have the prefix
  std::vector<Queue> queues_;
};

}  // namespace torch_ucc
