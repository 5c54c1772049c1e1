#include "messages/mixed_carrier.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fakes/messages_job.h"

namespace torch_ucc {
namespace {

// Rank 0 with its neighbour, rank 1, and rank 2 on another host. Two carriers of each rank, one
// through memory and one by UCX, are one for the channel.
class MixedCarrierTest : public testing::Test {
 protected:
  static constexpr int kRanks = 3;

  MixedCarrierTest() {
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::vector<std::uint64_t> near = rank == 2 ? std::vector<std::uint64_t>{2} : std::vector<std::uint64_t>{0, 1};
      ranks_.push_back(std::make_unique<Rank>(near_.carrier(rank), far_.carrier(rank), near));
      Rank& made = *ranks_.back();
      made.engine.stop_background();
      made.channel = std::make_shared<Channel>(
          made.mixed, 7, std::vector<ChannelMember>{{0, nullptr}, {1, nullptr}, {2, nullptr}}, rank, made.domain);
    }
  }

  std::shared_ptr<Transfer> post(int rank, const Message& message, std::uint32_t tag = 0) {
    auto op = std::make_shared<Transfer>(at(rank).channel, Space::user, tag, std::vector{message});
    at(rank).engine.post(op, Follow::waits);
    posted_.emplace_back(rank, op);
    return op;
  }
  void drive() {
    for (const auto& [rank, op] : posted_) {
      at(rank).engine.wait(*op, Deadline::after(milliseconds(0)));
    }
  }
  template <typename Condition>
  bool drive_until(const Condition& condition) {
    for (const Deadline limit = hard_limit(); !condition(); drive()) {
      if (limit.passed()) {
        return false;
      }
    }
    return true;
  }
  bool finish() {
    return drive_until(
        [&] { return std::all_of(posted_.begin(), posted_.end(), [](const auto& each) { return each.second->done(); }); });
  }
  // Lets everything arrive that is under way.
  void settle() {
    for (int i = 0; i < 2000; ++i) {
      for (const auto& rank : ranks_) {
        rank->engine.with_baton(hard_limit(), [&](LoopToken& token) { EXPECT_TRUE(rank->both.progress(token).ok()); });
      }
    }
  }

  // Drives both carriers at all times, as a context does.
  struct Both final : Pollable {
    Both(Carrier& near, Carrier& far, MixedCarrier& mixed) : near_(near), far_(far), mixed_(mixed) {}
    Status progress(LoopToken& token) override {
      EXPECT_TRUE(near_.progress(token).ok());
      EXPECT_TRUE(far_.progress(token).ok());
      return mixed_.progress(token);
    }
    Carrier& near_;
    Carrier& far_;
    MixedCarrier& mixed_;
  };
  struct Rank {
    Rank(Carrier& a_near, Carrier& a_far, const std::vector<std::uint64_t>& positions)
        : mixed(a_near, a_far, positions), both(a_near, a_far, mixed) {}
    MixedCarrier mixed;
    Both both;
    Engine engine{both, {}};
    const std::shared_ptr<FailureDomain> domain = std::make_shared<FailureDomain>("group");
    std::shared_ptr<Channel> channel;
    std::size_t outstanding() {
      std::size_t count = 0;
      engine.with_baton(hard_limit(), [&](LoopToken& token) {
        count = mixed.outstanding(token) + both.near_.outstanding(token) + both.far_.outstanding(token);
      });
      return count;
    }
  };
  Rank& at(int rank) { return *ranks_.at(static_cast<std::size_t>(rank)); }

  MessagesJob near_{Way::memory, kRanks};
  MessagesJob far_{Way::ucx, kRanks};
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::pair<int, std::shared_ptr<Transfer>>> posted_;
};

constexpr int kAny = Message::kAnyRank;

TEST_F(MixedCarrierTest, EachProcessIsReachedByItsCarrier) {
  Bytes sent = pattern(8, 1);
  Bytes got(8);
  const auto under_way = [](MessagesJob& job) { return job.outstanding(0); };
  post(0, receive_from(1, got));
  EXPECT_EQ(std::pair(under_way(near_), under_way(far_)), std::pair(std::size_t{1}, std::size_t{0}));
  post(0, receive_from(2, got));
  EXPECT_EQ(std::pair(under_way(near_), under_way(far_)), std::pair(std::size_t{1}, std::size_t{1}));
  post(1, send_to(0, sent));
  post(2, send_to(0, sent));
  ASSERT_TRUE(finish());
  EXPECT_TRUE(at(0).mixed.cancels_at_once(0));
  EXPECT_TRUE(at(0).mixed.cancels_at_once(1));
  EXPECT_FALSE(at(0).mixed.cancels_at_once(2));
  EXPECT_FALSE(at(0).mixed.cancels_at_once(9));
}

TEST_F(MixedCarrierTest, AReceiveFromAnyGetsWhatComesFromNearFromFarAndFromItself) {
  for (const std::size_t size : {std::size_t{8}, std::size_t{5} << 20U}) {
    for (const bool receiver_first : {false, true}) {
      for (const int sender : {0, 1, 2}) {
        Bytes sent = pattern(size, sender);
        Bytes got(size);
        if (!receiver_first) {
          post(sender, send_to(0, sent));
          settle();
        }
        const auto receive = post(0, receive_from(kAny, got));
        if (receiver_first) {
          EXPECT_FALSE(receive->done());
          post(sender, send_to(0, sent));
        }
        ASSERT_TRUE(finish());
        EXPECT_TRUE(receive->status().ok());
        EXPECT_EQ(receive->source(), sender);
        EXPECT_TRUE(got == sent);
      }
    }
  }
  EXPECT_EQ(at(0).outstanding(), 0U);
}

// The first message belongs to the receive that was posted first, though the other one names its
// sender.
TEST_F(MixedCarrierTest, AReceiveWaitsBehindAnEarlierOneFromAny) {
  for (const int sender : {1, 2}) {
    Bytes first = pattern(8, 1);
    Bytes second = pattern(8, 2);
    Bytes other = pattern(8, 3);
    Bytes got_any(8);
    Bytes got_named(8);
    Bytes got_other(8);
    const auto any = post(0, receive_from(kAny, got_any));
    post(0, receive_from(sender, got_named));
    const auto of_another_tag = post(0, receive_from(sender, got_other), 1);
    post(sender, send_to(0, other), 1);
    ASSERT_TRUE(drive_until([&] { return of_another_tag->done(); })) << "a receive of another tag does not wait";
    EXPECT_FALSE(any->done());
    post(sender, send_to(0, first));
    post(sender, send_to(0, second));
    ASSERT_TRUE(finish());
    EXPECT_EQ(got_any, first);
    EXPECT_EQ(got_named, second);
    EXPECT_EQ(got_other, other);
  }
}

TEST_F(MixedCarrierTest, AReceiveFromAnyTakesNothingOfAnEarlierOne) {
  for (const int sender : {1, 2}) {
    Bytes first = pattern(8, 1);
    Bytes second = pattern(8, 2);
    Bytes got_named(8);
    Bytes got_any(8);
    post(0, receive_from(sender, got_named));
    post(0, receive_from(kAny, got_any));
    post(sender, send_to(0, first));
    post(sender, send_to(0, second));
    ASSERT_TRUE(finish());
    EXPECT_EQ(got_named, first);
    EXPECT_EQ(got_any, second);
  }
}

// The receives behind it go on.
TEST_F(MixedCarrierTest, AReceiveThatIsGivenUpGetsNothing) {
  Bytes sent = pattern(8, 1);
  Bytes got_any(8);
  Bytes got_named(8);
  Bytes got(8);
  const auto own = std::make_shared<FailureDomain>("another group");
  auto& rank = at(0);
  const auto channel =
      std::make_shared<Channel>(rank.mixed, 7, std::vector<ChannelMember>{{0, nullptr}, {1, nullptr}, {2, nullptr}}, 0, own);
  const auto make = [&](int from, Bytes& bytes) {
    auto op = std::make_shared<Transfer>(channel, Space::user, 0, std::vector{receive_from(from, bytes)});
    rank.engine.post(op, Follow::waits);
    return op;
  };
  const auto any = make(kAny, got_any);
  const auto named = make(2, got_named);
  const auto receive = post(0, receive_from(1, got));
  rank.engine.fail(*own, Status(StatusCode::timeout, "too late"));
  ASSERT_TRUE(rank.engine.wait(*any, hard_limit()) && rank.engine.wait(*named, hard_limit()));
  post(1, send_to(0, sent));
  ASSERT_TRUE(finish());
  EXPECT_EQ(got, sent);
  EXPECT_EQ(got_any, Bytes(8));
  EXPECT_EQ(got_named, Bytes(8));
  EXPECT_EQ(rank.outstanding(), 0U);
}

// Those of one sender in their order.
TEST_F(MixedCarrierTest, ReceivesFromAnyGetEachMessageOnce) {
  for (std::mt19937::result_type seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    constexpr std::size_t kCount = 60;
    std::vector<int> senders;
    std::vector<Bytes> sent;
    std::vector<Bytes> got(kCount, Bytes(100));
    for (std::size_t i = 0; i < kCount; ++i) {
      senders.push_back(static_cast<int>(random() % kRanks));
      sent.push_back(pattern(100, static_cast<int>(i)));
    }
    std::vector<std::shared_ptr<Transfer>> receives;
    std::size_t next = 0;
    while (receives.size() < kCount || next < kCount) {
      if (next < kCount && (random() % 2 == 0 || receives.size() == kCount)) {
        post(senders[next], send_to(0, sent[next]));
        ++next;
      } else {
        receives.push_back(post(0, receive_from(kAny, got[receives.size()])));
      }
      if (random() % 4 == 0) {
        drive();
      }
    }
    ASSERT_TRUE(finish()) << "seed " << seed;
    std::vector<std::size_t> taken(kRanks);  // by sender: how many of its messages were received
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto source = static_cast<std::size_t>(receives[i]->source());
      std::size_t skip = taken[source]++;
      std::size_t of_source = 0;
      while (senders[of_source] != static_cast<int>(source) || skip-- != 0) {
        ++of_source;
      }
      EXPECT_TRUE(got[i] == sent[of_source]) << "seed " << seed << ", receive " << i;
    }
  }
}

}  // namespace
}  // namespace torch_ucc
