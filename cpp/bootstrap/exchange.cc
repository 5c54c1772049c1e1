#include "bootstrap/exchange.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "base/status.h"
#include "bootstrap/backoff.h"
#include "bootstrap/packed.h"

namespace torch_ucc {
namespace {

constexpr std::chrono::seconds kLook{1};  // how often a process looks for itself beside a relay

std::string packed_key(const std::string& name, int block) { return name + "/block/" + std::to_string(block); }

}  // namespace

Exchange::Exchange(KvStore& store, std::string name, int rank, int size, const std::string& mine)
    : store_(store),
      name_(std::move(name)),
      mine_(mine),
      rank_(rank),
      size_(size),
      blocks_((size + kBlock - 1) / kBlock),
      look_(Deadline::after(kLook)) {
  const int block = rank / kBlock;
  store_.set(key(rank), mine);
  const std::vector<std::string> keys = keys_of(block);
  if (store_.add(arrived_in(block), 1) != static_cast<std::int64_t>(keys.size())) {
    return;
  }
  const std::string packed = pack(store_.get_all(keys));
  if (blocks_ == 1) {
    store_.set(name_ + "/all", packed);
    return;
  }
  store_.set(packed_key(name_, block), packed);
  if (store_.add(name_ + "/blocks", 1) == blocks_) {
    store_.set(name_ + "/all", "1");
  }
}

std::string Exchange::key(int rank) const { return name_ + "/" + std::to_string(rank); }

std::string Exchange::arrived_in(int block) const { return name_ + "/arrived/" + std::to_string(block); }

std::vector<std::string> Exchange::keys_of(int block) const {
  std::vector<std::string> keys;
  for (int rank = block * kBlock; rank < std::min(size_, (block + 1) * kBlock); ++rank) {
    keys.push_back(key(rank));
  }
  return keys;
}

std::optional<std::vector<std::string>> Exchange::poll(Relay* relay) {
  if (relay != nullptr && !relay->reads()) {
    if (auto values = receive(*relay)) {
      return values;
    }
    if (!relay->reads() && !look_.passed()) {
      return std::nullopt;
    }
  }
  auto values = read();
  if (values && relay != nullptr && relay->is_asked()) {
    relay->pass_on(pack(*values));
  }
  look_ = Deadline::after(kLook);
  return values;
}

std::optional<std::vector<std::string>> Exchange::read() {
  const std::optional<std::string> all = store_.get(name_ + "/all");
  if (!all) {
    return std::nullopt;
  }
  std::vector<std::string> packed{*all};
  if (blocks_ > 1) {
    std::vector<std::string> keys;
    keys.reserve(static_cast<std::size_t>(blocks_));
    for (int block = 0; block < blocks_; ++block) {
      keys.push_back(packed_key(name_, block));
    }
    packed = store_.get_all(keys);
  }
  std::vector<std::string> values;
  values.reserve(static_cast<std::size_t>(size_));
  for (const std::string& each : packed) {
    std::vector<std::string> some = unpack(each);
    std::move(some.begin(), some.end(), std::back_inserter(values));
  }
  if (values.size() != static_cast<std::size_t>(size_)) {
    throw StatusError(Status(StatusCode::transport, std::to_string(values.size()) + " ranks published values, not " +
                                                        std::to_string(size_) +
                                                        ": check that all ranks have the same world size"));
  }
  return values;
}

std::vector<std::string> Exchange::wait(Deadline deadline, const GiveUp& between, Relay* relay) {
  Backoff backoff(size_);
  while (true) {
    if (auto values = poll(relay)) {
      return *std::move(values);
    }
    if (deadline.passed()) {
      throw StatusError(Status(StatusCode::timeout, "timed out waiting for " + missing_ranks() + " of " + std::to_string(size_) +
                                                        " to create the group"));
    }
    backoff.sleep(between);
  }
}

// Returns nothing while the reader has passed nothing on, or if that cannot be what it read.
std::optional<std::vector<std::string>> Exchange::receive(Relay& relay) const {
  const std::optional<std::string> text = relay.receive();
  if (!text) {
    return std::nullopt;
  }
  try {
    std::vector<std::string> values = unpack(*text);
    if (values.size() == static_cast<std::size_t>(size_) && values[static_cast<std::size_t>(rank_)] == mine_) {
      return values;
    }
  } catch (const StatusError&) {  // NOLINT(bugprone-empty-catch): a text that cannot be read counts as none
  }
  return std::nullopt;
}

// Reads one counter for each block, and the keys of ranks until 8 missing ranks are found.
std::string Exchange::missing_ranks() {
  constexpr int kNamed = 8;
  std::string names;
  std::int64_t missing = 0;
  int named = 0;
  for (int block = 0; block < blocks_; ++block) {
    const std::vector<std::string> keys = keys_of(block);
    const std::int64_t here = static_cast<std::int64_t>(keys.size()) - store_.add(arrived_in(block), 0);
    missing += here;
    for (std::size_t i = 0; here > 0 && i < keys.size() && named < kNamed; ++i) {
      if (!store_.get(keys[i])) {
        names += (named++ == 0 ? "" : ", ") + std::to_string(block * kBlock + static_cast<int>(i));
      }
    }
  }
  if (missing == 0) {
    return "the last rank";
  }
  if (named == 0) {  // their values were published meanwhile
    return std::to_string(missing) + " rank(s)";
  }
  return "rank(s) " + names + (missing > named ? " and " + std::to_string(missing - named) + " more" : "");
}

}  // namespace torch_ucc
