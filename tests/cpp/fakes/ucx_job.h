// Ranks of a group in one process: real UCX workers, each with an engine of its own, driven in turn
// by the test's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fakes/limits.h"
#include "progress/engine.h"
#include "ucx/messages.h"

namespace torch_ucc {

using Bytes = std::vector<std::uint8_t>;

// Different for every seed, and at every place different from the next.
inline Bytes pattern(std::size_t size, int seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::uint8_t>(static_cast<std::size_t>(seed) * 37 + i * 101 + (i >> 8U));
  }
  return bytes;
}

inline Message send_to(int peer, Bytes& bytes) { return {Message::Kind::send, peer, bytes.data(), bytes.size()}; }
inline Message receive_from(int peer, Bytes& bytes) { return {Message::Kind::receive, peer, bytes.data(), bytes.size()}; }

// For workers outside a job. Peers may no longer be sending to them.
inline void destroy(const std::vector<UcxWorker*>& workers) {
  Engine engine(*workers.front(), {});
  engine.with_baton(hard_limit(), [&](LoopToken& token) {
    for (UcxWorker* worker : workers) {
      worker->destroy(token);
    }
  });
}

// Of a worker that can talk to nobody but itself: no endpoint can be made to it.
inline std::string unreachable_address() {
  const char* const name = "UCC_UCX_TLS";
  ::setenv(name, "self", 1);  // NOLINT(concurrency-mt-unsafe): no other thread of a test reads the environment
  UcxWorker worker;
  ::unsetenv(name);  // NOLINT(concurrency-mt-unsafe): as above
  std::string address = worker.address();
  destroy({&worker});
  return address;
}

class Transfer final : public Messages {
 public:
  using Messages::Messages;
  std::string describe() const override { return "transfer"; }

  bool done() const { return completion().done(); }
  const Status& status() const { return completion().status(); }
};

class UcxJob {
 public:
  static constexpr std::uint16_t kGroup = 7;

  explicit UcxJob(int size) : ranks_(static_cast<std::size_t>(size)) {
    std::vector<std::string> addresses;
    for (const Rank& rank : ranks_) {
      addresses.push_back(rank.worker.address());
    }
    for (Rank& rank : ranks_) {
      rank.worker.set_peers(addresses);
      rank.engine.stop_background();
    }
    for (int rank = 0; rank < size; ++rank) {
      at(rank).channel = make_channel(rank, kGroup, at(rank).domain);
    }
  }

  // With messages left in flight the workers are left as they are, as in a process that ends in
  // disorder.
  ~UcxJob() {
    const bool idle = std::all_of(ranks_.begin(), ranks_.end(), [](Rank& rank) { return rank.outstanding() == 0; });
    for (std::size_t i = 0; idle && i < ranks_.size(); ++i) {
      ranks_[i].engine.with_baton(hard_limit(), [&](LoopToken& token) { ranks_[i].worker.destroy(token); });
    }
  }
  UcxJob(const UcxJob&) = delete;
  UcxJob& operator=(const UcxJob&) = delete;

  // Another group of the same ranks.
  std::shared_ptr<Channel> make_channel(int rank, std::uint16_t group, const std::shared_ptr<FailureDomain>& domain) {
    std::vector<ChannelMember> members;
    for (std::size_t position = 0; position < ranks_.size(); ++position) {
      members.push_back({position, nullptr});
    }
    return std::make_shared<Channel>(worker(rank), group, std::move(members), rank, domain);
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  UcxWorker& worker(int rank) { return at(rank).worker; }
  FailureDomain& domain(int rank) { return *at(rank).domain; }
  const std::shared_ptr<FailureDomain>& shared_domain(int rank) { return at(rank).domain; }
  Engine& engine(int rank) { return at(rank).engine; }
  const std::shared_ptr<Channel>& channel(int rank) { return at(rank).channel; }
  std::size_t outstanding(int rank) { return at(rank).outstanding(); }
  bool any_failed() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.domain->failed(); });
  }

  struct How {
    std::uint32_t tag = 0;
    Space space = Space::user;
    NextRound next_round{};
    std::shared_ptr<Channel> channel{};  // in place of the job's own
  };
  std::shared_ptr<Transfer> post(int rank, const std::vector<Message>& messages, How how) {
    auto op = std::make_shared<Transfer>(how.channel ? how.channel : channel(rank), how.space, how.tag, messages,
                                         std::move(how.next_round));
    post_op(rank, op);
    return op;
  }
  std::shared_ptr<Transfer> post(int rank, const std::vector<Message>& messages) { return post(rank, messages, How()); }
  void post_op(int rank, std::shared_ptr<Op> op) {
    engine(rank).post(op, Follow::waits);
    posted_.emplace_back(rank, std::move(op));
  }

  // Every rank with something in flight drives.
  void drive() {
    for (const auto& [rank, op] : posted_) {
      if (!op->completion().done()) {
        engine(rank).wait(*op, Deadline::after(milliseconds(0)));
      }
    }
  }
  // True once `op` is done, or all that was posted.
  bool finish(const Op& op) {
    return drive_until([&op] { return op.completion().done(); });
  }
  bool finish() {
    return drive_until([this] {
      return std::all_of(posted_.begin(), posted_.end(), [](const auto& posted) { return posted.second->completion().done(); });
    });
  }

 private:
  struct Rank {
    UcxWorker worker;
    std::shared_ptr<FailureDomain> domain = std::make_shared<FailureDomain>("group");
    Engine engine{worker, {}};
    std::shared_ptr<Channel> channel;

    std::size_t outstanding() {
      std::size_t count = 0;
      engine.with_baton(hard_limit(), [&](LoopToken& token) { count = worker.outstanding(token); });
      return count;
    }
  };

  Rank& at(int rank) { return ranks_.at(static_cast<std::size_t>(rank)); }

  template <typename Condition>
  bool drive_until(Condition condition) {
    const Deadline limit = hard_limit();
    while (!condition()) {
      if (limit.passed()) {
        return false;
      }
      drive();
    }
    return true;
  }

  std::vector<Rank> ranks_;
  std::vector<std::pair<int, std::shared_ptr<Op>>> posted_;
};

}  // namespace torch_ucc
