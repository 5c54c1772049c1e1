// Ranks of a group in one process, which send by UCX or through memory: each rank has a carrier and
// an engine of its own, and the test's thread drives them in turn.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fakes/limits.h"
#include "messages/messages.h"
#include "progress/engine.h"
#include "shm/mail.h"
#include "ucx/worker.h"

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

enum class Way : unsigned char { ucx, memory };

inline std::string name_of(const testing::TestParamInfo<Way>& info) { return info.param == Way::ucx ? "ByUcx" : "ThroughMemory"; }

// The boxes of some processes, in one process.
class Boxes {
 public:
  explicit Boxes(std::size_t size) : size_(size) {
    for (std::size_t i = 0; i < size * size; ++i) {
      boxes_.emplace_back(static_cast<char*>(std::aligned_alloc(shm::MailBox::kPage, bytes())), &std::free);
      std::memset(boxes_.back().get(), 0, bytes());
    }
  }
  // What `writer` writes for `reader`.
  shm::MailBox* box(std::size_t writer, std::size_t reader) {
    return reinterpret_cast<shm::MailBox*>(boxes_[writer * size_ + reader].get());
  }
  std::vector<shm::Mail::Neighbour> neighbours_of(std::size_t self) {
    std::vector<shm::Mail::Neighbour> neighbours;
    for (std::size_t peer = 0; peer < size_; ++peer) {
      if (peer != self) {
        neighbours.push_back({peer, box(self, peer), box(peer, self), nullptr});
      }
    }
    return neighbours;
  }

 private:
  static std::size_t bytes() {
    return (shm::MailBox::total_bytes() + shm::MailBox::kPage - 1) / shm::MailBox::kPage * shm::MailBox::kPage;
  }

  const std::size_t size_;
  std::vector<std::unique_ptr<char, decltype(&std::free)>> boxes_;
};

class MessagesJob {
 public:
  static constexpr std::uint16_t kGroup = 7;

  MessagesJob(Way way, int size) : way_(way), boxes_(way == Way::memory ? static_cast<std::size_t>(size) : 0) {
    std::vector<std::string> addresses;
    for (int rank = 0; rank < size; ++rank) {
      std::unique_ptr<Carrier> carrier;
      if (way == Way::ucx) {
        carrier = std::make_unique<UcxWorker>();
        addresses.push_back(static_cast<UcxWorker&>(*carrier).address());
      } else {
        const auto self = static_cast<std::uint64_t>(rank);
        carrier = std::make_unique<shm::Mail>(self, boxes_.neighbours_of(self));
      }
      ranks_.push_back(std::make_unique<Rank>(std::move(carrier)));
    }
    for (int rank = 0; rank < size; ++rank) {
      if (way == Way::ucx) {
        worker(rank).set_peers(addresses);
      }
      engine(rank).stop_background();
      at(rank).channel = make_channel(rank, kGroup, at(rank).domain);
    }
  }

  // With messages left in flight the workers are left as they are, as in a process that ends in
  // disorder.
  ~MessagesJob() {
    const bool idle = std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->outstanding() == 0; });
    for (int rank = 0; idle && way_ == Way::ucx && rank < size(); ++rank) {
      engine(rank).with_baton(hard_limit(), [&](LoopToken& token) { worker(rank).destroy(token); });
    }
  }
  MessagesJob(const MessagesJob&) = delete;
  MessagesJob& operator=(const MessagesJob&) = delete;

  // Another group of the same ranks.
  std::shared_ptr<Channel> make_channel(int rank, std::uint16_t group, const std::shared_ptr<FailureDomain>& domain) {
    std::vector<ChannelMember> members;
    for (std::size_t position = 0; position < ranks_.size(); ++position) {
      members.push_back({position, nullptr});
    }
    return std::make_shared<Channel>(carrier(rank), group, std::move(members), rank, domain);
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Carrier& carrier(int rank) { return *at(rank).carrier; }
  UcxWorker& worker(int rank) { return static_cast<UcxWorker&>(carrier(rank)); }  // only by UCX
  shm::Mail& mail(int rank) { return static_cast<shm::Mail&>(carrier(rank)); }    // only through memory
  Boxes& boxes() { return boxes_; }
  Way way() const { return way_; }
  FailureDomain& domain(int rank) { return *at(rank).domain; }
  const std::shared_ptr<FailureDomain>& shared_domain(int rank) { return at(rank).domain; }
  Engine& engine(int rank) { return at(rank).engine; }
  const std::shared_ptr<Channel>& channel(int rank) { return at(rank).channel; }
  std::size_t outstanding(int rank) { return at(rank).outstanding(); }
  bool any_failed() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->domain->failed(); });
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
  // Rank 0 sends each text to rank 1 as a note.
  void post_notes(std::vector<Bytes>& texts) {
    const auto notes = make_channel(0, TagLayout::kNotes, shared_domain(0));
    for (Bytes& text : texts) {
      post(0, {send_to(1, text)}, {.space = Space::collective, .channel = notes});
    }
  }
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
    explicit Rank(std::unique_ptr<Carrier> its) : carrier(std::move(its)) {}

    std::unique_ptr<Carrier> carrier;
    std::shared_ptr<FailureDomain> domain = std::make_shared<FailureDomain>("group");
    Engine engine{*carrier, {}};
    std::shared_ptr<Channel> channel;

    std::size_t outstanding() {
      std::size_t count = 0;
      engine.with_baton(hard_limit(), [&](LoopToken& token) { count = carrier->outstanding(token); });
      return count;
    }
  };

  Rank& at(int rank) { return *ranks_.at(static_cast<std::size_t>(rank)); }

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

  const Way way_;
  Boxes boxes_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::pair<int, std::shared_ptr<Op>>> posted_;
};

class UcxJob final : public MessagesJob {
 public:
  explicit UcxJob(int size) : MessagesJob(Way::ucx, size) {}
};

}  // namespace torch_ucc
