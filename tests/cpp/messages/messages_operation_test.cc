// One operation of many messages: how many at a time, in rounds, woken and waited for, with every
// rank in its thread.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "fakes/messages_job.h"
#include "messages/messages.h"

namespace torch_ucc {
namespace {

class MessagesOperation : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Go, MessagesOperation, testing::Values(Way::ucx, Way::memory), name_of);

void expect_ok(const Transfer& op) { EXPECT_TRUE(op.status().ok()) << op.status().message(); }

TEST_P(MessagesOperation, HasAFewUnderWayAtATime) {
  constexpr std::size_t kCount = 5 * Messages::kWindow + 3;
  MessagesJob job(GetParam(), 2);
  Bytes sent = pattern(kCount, 1);
  Bytes got(kCount);
  std::vector<Message> sends;
  std::vector<Message> receives;
  for (std::size_t i = 0; i < kCount; ++i) {
    sends.push_back({Message::Kind::send, 1, &sent[i], 1});
    receives.push_back({Message::Kind::receive, 0, &got[i], 1});
  }
  const auto receive = job.post(1, receives);
  EXPECT_EQ(job.outstanding(1), Messages::kWindow);
  const auto send = job.post(0, sends);
  EXPECT_LE(job.outstanding(0), Messages::kWindow);
  ASSERT_TRUE(job.finish());
  expect_ok(*send);
  expect_ok(*receive);
  EXPECT_EQ(got, sent);  // in the order of the list
  EXPECT_EQ(job.outstanding(0), 0U);
  EXPECT_EQ(job.outstanding(1), 0U);
}

TEST_P(MessagesOperation, OfNoMessageEndsAtOnce) {
  MessagesJob job(GetParam(), 1);
  const auto op = job.post(0, {});
  ASSERT_TRUE(job.finish());
  expect_ok(*op);
}

// A thread that waits sleeps once nothing moves. In the middle of a message the peer may itself
// sleep until there is room in a queue.
TEST_P(MessagesOperation, EachPartOfAMessageThatMovesIsSeen) {
  MessagesJob job(GetParam(), 2);
  Bytes sent = pattern(32 << 20, 1);
  Bytes got(sent.size());
  const auto receive = std::make_shared<Transfer>(job.channel(1), Space::user, 0, std::vector{receive_from(0, got)});
  const auto send = job.post(0, {send_to(1, sent)});
  int advanced = 0;
  job.engine(1).with_baton(hard_limit(), [&](LoopToken& token) { EXPECT_TRUE(receive->start(token).ok()); });
  for (auto state = Op::State::in_flight; state != Op::State::ended;) {
    job.drive();
    job.engine(1).with_baton(hard_limit(), [&](LoopToken& token) {
      EXPECT_TRUE(job.carrier(1).progress(token).ok());
      state = receive->poll(token);
    });
    advanced += state == Op::State::advanced ? 1 : 0;
  }
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(got, sent);
  EXPECT_GT(advanced, 10);
}

// --- rounds

// Everybody's part travels around the ring: what a rank sends in a round is what came in the round
// before.
TEST_P(MessagesOperation, GoesOnInRoundsWithWhatCame) {
  constexpr int kRanks = 4;
  constexpr std::size_t kPart = 20000;
  MessagesJob job(GetParam(), kRanks);
  std::vector<Bytes> all(kRanks, Bytes(kRanks * kPart));
  std::vector<int> rounds(kRanks, 0);
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto me = static_cast<std::size_t>(rank);
    const auto part = [&all, me](int owner) { return all[me].data() + static_cast<std::size_t>(owner) * kPart; };
    const Bytes mine = pattern(kPart, rank);
    std::copy(mine.begin(), mine.end(), part(rank));
    const NextRound next = [&rounds, me, rank, part]() -> std::vector<Message> {
      const int round = rounds[me]++;
      if (round == kRanks - 1) {
        return {};
      }
      const int sent = (rank - round + kRanks) % kRanks;
      const int got = (rank - round - 1 + kRanks) % kRanks;
      return {{Message::Kind::send, (rank + 1) % kRanks, part(sent), kPart},
              {Message::Kind::receive, (rank - 1 + kRanks) % kRanks, part(got), kPart}};
    };
    job.post(rank, next(), {.space = Space::collective, .next_round = next});
  }
  ASSERT_TRUE(job.finish());
  for (std::size_t owner = 0; owner < kRanks; ++owner) {
    const Bytes expected = pattern(kPart, static_cast<int>(owner));
    for (const Bytes& of_rank : all) {
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), of_rank.data() + owner * kPart));
    }
  }
  EXPECT_EQ(rounds, std::vector<int>(kRanks, kRanks));
}

TEST_P(MessagesOperation, ARoundIsAskedForWhenAllOfTheLastHaveEnded) {
  MessagesJob job(GetParam(), 2);
  Bytes one = pattern(300000, 1);
  Bytes two = pattern(8, 2);
  Bytes got_one(300000);
  Bytes got_two(8);
  int asked = 0;
  const auto receive = job.post(1, {receive_from(0, got_one), receive_from(0, got_two)}, {.next_round = [&] {
                                  EXPECT_TRUE(got_one == one);
                                  EXPECT_EQ(got_two, two);
                                  ++asked;
                                  return std::vector<Message>();
                                }});
  ASSERT_TRUE(job.finish(*job.post(0, {send_to(1, one)})));
  job.drive();
  EXPECT_EQ(asked, 0);
  EXPECT_FALSE(receive->done());
  job.post(0, {send_to(1, two)});
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(asked, 1);
}

// --- waking and waiting

TEST_P(MessagesOperation, IsAnnouncedByThePeersItWaitsFor) {
  MessagesJob job(GetParam(), 3);
  const Bell bell;
  const auto channel =
      std::make_shared<Channel>(job.carrier(0), MessagesJob::kGroup,
                                std::vector<ChannelMember>{{0, nullptr}, {1, &bell}, {2, nullptr}}, 0, job.shared_domain(0));
  Bytes bytes(8);
  const auto announced = [&](const std::vector<Message>& messages) {
    return Transfer(channel, Space::user, 0, messages).is_announced();
  };
  EXPECT_TRUE(announced({receive_from(1, bytes)}));
  EXPECT_TRUE(announced({receive_from(1, bytes), receive_from(0, bytes)}));
  EXPECT_FALSE(announced({receive_from(1, bytes), receive_from(2, bytes)}));
  EXPECT_FALSE(announced({receive_from(Message::kAnyRank, bytes)}));
}

TEST_P(MessagesOperation, RingsForThePeersOfItsMessages) {
  MessagesJob job(GetParam(), 3);
  const Bell bells[3];
  const auto channel = std::make_shared<Channel>(job.carrier(0), MessagesJob::kGroup,
                                                 std::vector<ChannelMember>{{0, nullptr}, {1, &bells[1]}, {2, &bells[2]}}, 0,
                                                 job.shared_domain(0));
  Bytes bytes = pattern(8, 1);
  Bytes got(8);
  const auto rung_by = [&](const Message& message) {
    Bell::Sleep first(bells[1]);
    Bell::Sleep second(bells[2]);
    job.post(0, {message}, {.channel = channel});
    return std::pair(first.wait(Clock::duration::zero()), second.wait(Clock::duration::zero()));
  };
  EXPECT_EQ(rung_by(send_to(1, bytes)), std::pair(true, false));
  EXPECT_EQ(rung_by(receive_from(2, got)), std::pair(false, true));
  EXPECT_EQ(rung_by(receive_from(Message::kAnyRank, got)), std::pair(true, true));
  job.post(1, {receive_from(0, got)});
  job.post(2, {send_to(0, bytes)});
  job.post(1, {send_to(0, bytes)});
  ASSERT_TRUE(job.finish());
}

TEST_P(MessagesOperation, IsPatientByItsBytes) {
  MessagesJob job(GetParam(), 1);
  Bytes bytes(5000000);
  EXPECT_EQ(Transfer(job.channel(0), Space::user, 0, {}).patience(), microseconds(0));
  EXPECT_EQ(Transfer(job.channel(0), Space::user, 0, {send_to(0, bytes), receive_from(0, bytes)}).patience(),
            microseconds(10000));
}

TEST_P(MessagesOperation, BelongsToTheFailureDomainOfItsGroup) {
  MessagesJob job(GetParam(), 1);
  const Transfer transfer(job.channel(0), Space::user, 0, {});
  EXPECT_EQ(&transfer.domain(), &job.domain(0));
}

// --- threads

// Everybody sends to everybody, itself included.
void exchange_with_all(MessagesJob& job, int rank, int round) {
  const auto seed_of = [round](int from, int to) { return 1000 * round + 10 * from + to; };
  const std::size_t size = round % 5 == 0 ? 300000 : 200;
  const auto ranks = static_cast<std::size_t>(job.size());
  std::vector<Bytes> sent(ranks);
  std::vector<Bytes> got(ranks, Bytes(size));
  std::vector<Message> messages;
  for (int peer = 0; peer < job.size(); ++peer) {
    const auto i = static_cast<std::size_t>(peer);
    sent[i] = pattern(size, seed_of(rank, peer));
    messages.push_back(send_to(peer, sent[i]));
    messages.push_back(receive_from(peer, got[i]));
  }
  const auto op = std::make_shared<Transfer>(job.channel(rank), Space::collective, static_cast<std::uint32_t>(round), messages);
  job.engine(rank).post(op, Follow::waits);
  ASSERT_TRUE(job.engine(rank).wait(*op, hard_limit()));
  expect_ok(*op);
  for (int peer = 0; peer < job.size(); ++peer) {
    ASSERT_TRUE(got[static_cast<std::size_t>(peer)] == pattern(size, seed_of(peer, rank)));
  }
}

// As in real processes, and run under TSan by ci/sanitize.
TEST_P(MessagesOperation, EndsInEveryThreadOfRanks) {
  constexpr int kRanks = 3;
  MessagesJob job(GetParam(), kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&job, rank] {
      for (int round = 0; round < 30; ++round) {
        exchange_with_all(job, rank, round);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_FALSE(job.any_failed());
}

}  // namespace
}  // namespace torch_ucc
