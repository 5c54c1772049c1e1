#include "bootstrap/kv_store.h"

#include "base/status.h"
#include "bootstrap/backoff.h"

namespace torch_ucc {

std::string get_by(KvStore& store, const std::string& key, Deadline deadline, const std::string& what, const GiveUp& give_up) {
  Backoff backoff;
  while (true) {
    if (std::optional<std::string> value = store.get(key)) {
      return *std::move(value);
    }
    if (deadline.passed()) {
      throw StatusError(Status(StatusCode::timeout, "timed out waiting for " + what));
    }
    backoff.sleep(give_up);
  }
}

}  // namespace torch_ucc
