// Allgather of one small value a rank over the store.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "bootstrap/kv_store.h"

namespace torch_ucc {

// Cost a rank: one set, one add, one get_all, one get per poll; the last to arrive adds one set. Keys are written once.
// Bytes: every rank reads the values of all. Not thread safe.
class Exchange {
 public:
  // Publishes `mine` under `name`, which must be new among these ranks. Throws StatusError.
  Exchange(KvStore& store, std::string name, int rank, int size, const std::string& mine);

  // Non-blocking but for the round trip to the store. The values of all ranks by rank, once all are there. Throws StatusError.
  std::optional<std::vector<std::string>> poll();

  // Polls until the deadline; throws StatusError (timeout) that names the ranks which are missing.
  std::vector<std::string> wait(Deadline deadline);

 private:
  std::string key(int rank) const;
  std::string missing_ranks();

  KvStore& store_;
  const std::string name_;
  const int size_;
};

}  // namespace torch_ucc
