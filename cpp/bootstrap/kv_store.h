// The interface that bootstrap needs of the key-value store of a job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "bootstrap/backoff.h"

namespace torch_ucc {

// Implementations throw StatusError (transport) when the store cannot be reached. No member waits
// for a peer.
class KvStore {
 public:
  virtual ~KvStore() = default;

  virtual void set(const std::string& key, const std::string& value) = 0;
  // Returns the value, or nothing if the key is not set yet.
  virtual std::optional<std::string> get(const std::string& key) = 0;
  // Returns the values of `keys` in their order. The caller must know that all keys are set.
  virtual std::vector<std::string> get_all(const std::vector<std::string>& keys) = 0;
  // Adds to a counter that starts at zero; returns the new value.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
};

// Polls with growing pauses until the key is set, and returns its value. Calls `give_up` before
// each pause. Throws StatusError (timeout) that names `what` when the deadline has passed.
std::string get_by(KvStore& store, const std::string& key, Deadline deadline, const std::string& what,
                   const GiveUp& give_up = {});

// Returns the decimal number in `value`; throws StatusError (transport) that names `what` if
// `value` is not a number.
std::int64_t number_in(const std::string& value, const std::string& what);

}  // namespace torch_ucc
