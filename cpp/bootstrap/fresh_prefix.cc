#include "bootstrap/fresh_prefix.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>
#include <utility>

#include "base/hex.h"
#include "base/named_values.h"
#include "base/status.h"
#include "bootstrap/backoff.h"
#include "bootstrap/exchange.h"

namespace torch_ucc {
namespace {

constexpr char kRoot[] = "torch_ucc/";
constexpr std::size_t kNonceBytes = 16;

std::string new_prefix() {
  std::random_device random;
  std::string nonce(kNonceBytes, '\0');
  std::generate(nonce.begin(), nonce.end(), [&] { return static_cast<char>(random()); });
  return kRoot + to_hex(nonce);
}

std::string tickets_key(const std::string& queue) { return queue + "/tickets"; }
std::string answer_key(const std::string& queue) { return queue + "/answer"; }

// Any program may have written the key of an answer, so throws StatusError (transport) if what
// stands for the prefix is none.
std::string checked_prefix(const std::string& prefix) {
  const std::size_t root = sizeof(kRoot) - 1;
  const bool has_root = prefix.compare(0, root, kRoot) == 0;
  const std::optional<std::string> nonce = has_root ? from_hex(prefix.substr(root)) : std::nullopt;
  if (!nonce || nonce->size() != kNonceBytes) {
    refuse_published();
  }
  return prefix;
}

// Takes a ticket and waits for an answer by rank `by`. Returns the prefix; throws StatusError
// (timeout) when the deadline has passed.
std::string ask(KvStore& store, const std::string& queue, int by, int size, Deadline deadline) {
  const std::int64_t ticket = store.add(tickets_key(queue), 1);
  Backoff backoff(size);
  while (true) {
    if (const std::optional<std::string> answer = store.get(answer_key(queue))) {
      const NamedValues fields = decode_values(*answer);
      if (number_in(value_at(fields, 0, "ticket"), "an answer to ranks that start") >= ticket) {
        return checked_prefix(value_at(fields, 1, "prefix"));
      }
    }
    if (deadline.passed()) {
      throw StatusError(Status(StatusCode::timeout, "timed out waiting for rank " + std::to_string(by) + " of " +
                                                        std::to_string(size) + " to create the group"));
    }
    backoff.sleep();
  }
}

}  // namespace

FreshPrefix::FreshPrefix(const std::string& name, int rank, int size)
    : root_(kRoot + std::string("start/") + name), rank_(rank), size_(size) {}

void FreshPrefix::find(KvStore& store, Deadline deadline) {
  const int first = rank_ / Exchange::kBlock * Exchange::kBlock;
  const std::string block = root_ + "/" + std::to_string(first);
  const std::string first_ranks = root_ + "/first";
  if (rank_ == first && std::min(size_, first + Exchange::kBlock) > first + 1) {
    queues_.push_back({block});
  }
  if (rank_ == 0) {
    text_ = new_prefix();
    if (size_ > Exchange::kBlock) {
      queues_.push_back({first_ranks});
    }
  } else {
    text_ = rank_ == first ? ask(store, first_ranks, 0, size_, deadline) : ask(store, block, first, size_, deadline);
  }
}

// Also answers tickets that ranks of earlier starts left in the store. No rank reads those answers.
void FreshPrefix::answer(KvStore& store) {
  for (Queue& queue : queues_) {
    const std::int64_t taken = store.add(tickets_key(queue.name), 0);
    if (taken > queue.answered) {
      store.set(answer_key(queue.name), encode_values({{"ticket", std::to_string(taken)}, {"prefix", text_}}));
      queue.answered = taken;
    }
  }
}

std::vector<std::string> FreshPrefix::exchange(KvStore& store, const std::string& name, const std::string& mine,
                                               Deadline deadline, const GiveUp& give_up) {
  if (text_.empty()) {
    find(store, deadline);
  }
  const std::string key = text_ + "/" + name;
  Exchange exchange(store, key, rank_, size_, mine);
  const std::unique_ptr<Relay> relay = Relay::among(size_, key);
  const auto between = [&] {
    answer(store);
    if (give_up) {
      give_up();
    }
  };
  std::vector<std::string> values = exchange.wait(deadline, between, relay.get());
  queues_.clear();
  return values;
}

std::vector<std::string> FreshPrefix::exchange(KvStore& store, const std::string& mine, Deadline deadline) {
  return exchange(store, "exchange/" + std::to_string(calls_++), mine, deadline);
}

}  // namespace torch_ucc
