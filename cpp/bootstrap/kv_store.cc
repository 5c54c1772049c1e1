#include "bootstrap/kv_store.h"

#include <charconv>
#include <system_error>

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

std::int64_t number_in(const std::string& value, const std::string& what) {
  std::int64_t number = 0;
  const char* const last = value.data() + value.size();
  if (const auto [end, error] = std::from_chars(value.data(), last, number); error != std::errc() || end != last) {
    throw StatusError(Status(StatusCode::transport, what + " in the store is '" + value + "', which is not a number"));
  }
  return number;
}

}  // namespace torch_ucc
