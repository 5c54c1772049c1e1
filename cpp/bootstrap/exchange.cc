#include "bootstrap/exchange.h"

#include <utility>

#include "base/status.h"
#include "bootstrap/backoff.h"

namespace torch_ucc {

Exchange::Exchange(KvStore& store, std::string name, int rank, int size, const std::string& mine)
    : store_(store), name_(std::move(name)), size_(size) {
  store_.set(key(rank), mine);
  if (store_.add(name_ + "/arrived", 1) == size_) {
    store_.set(name_ + "/all", "1");
  }
}

std::string Exchange::key(int rank) const { return name_ + "/" + std::to_string(rank); }

std::optional<std::vector<std::string>> Exchange::poll() {
  if (!store_.get(name_ + "/all")) {
    return std::nullopt;
  }
  std::vector<std::string> keys;
  keys.reserve(static_cast<std::size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) {
    keys.push_back(key(rank));
  }
  return store_.get_all(keys);
}

std::vector<std::string> Exchange::wait(Deadline deadline) {
  Backoff backoff;
  while (true) {
    if (auto values = poll()) {
      return *std::move(values);
    }
    if (deadline.passed()) {
      throw StatusError(Status(StatusCode::timeout, "timed out waiting for " + missing_ranks() + " of " + std::to_string(size_) +
                                                        " to create the group"));
    }
    backoff.sleep();
  }
}

std::string Exchange::missing_ranks() {
  constexpr int kNamed = 8;
  constexpr int kAskedOneByOne = 256;
  if (size_ > kAskedOneByOne) {  // one question to the store, however many ranks there are
    return std::to_string(size_ - store_.add(name_ + "/arrived", 0)) + " ranks";
  }
  std::string missing;
  int count = 0;
  for (int rank = 0; rank < size_; ++rank) {
    if (!store_.get(key(rank)) && ++count <= kNamed) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
  }
  return "rank(s) " + (count > kNamed ? missing + " and " + std::to_string(count - kNamed) + " more" : missing);
}

}  // namespace torch_ucc
