// What bootstrap needs of a key-value store that all processes of a job share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "bootstrap/backoff.h"

namespace torch_ucc {

// Implementations throw StatusError (transport) when the store cannot be reached. None of these
// blocks on a peer.
class KvStore {
 public:
  virtual ~KvStore() = default;

  virtual void set(const std::string& key, const std::string& value) = 0;
  // The value, or nothing if the key is not there yet.
  virtual std::optional<std::string> get(const std::string& key) = 0;
  // Values of keys that are known to be there.
  virtual std::vector<std::string> get_all(const std::vector<std::string>& keys) = 0;
  // Adds to a counter that starts at zero; returns the new value.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
};

// Polls with growing pauses until the key is there; throws StatusError (timeout) naming `what` when
// the deadline passes.
std::string get_by(KvStore& store, const std::string& key, Deadline deadline, const std::string& what,
                   const GiveUp& give_up = {});

// What `value` says; throws StatusError (transport) naming `what` if it is anything but a number.
std::int64_t number_in(const std::string& value, const std::string& what);

}  // namespace torch_ucc
