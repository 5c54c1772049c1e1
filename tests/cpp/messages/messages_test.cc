// Messages that arrive, each at its place. What an operation does with many:
// messages_operation_test.cc. Those that do not fit or fail: messages_failure_test.cc.
#include "messages/messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "fakes/messages_job.h"

namespace torch_ucc {
namespace {

class MessagesTest : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Go, MessagesTest, testing::Values(Way::ucx, Way::memory), name_of);

constexpr std::size_t kMegabyte = std::size_t{1} << 20U;

// By the ways in which UCX sends them: nothing, within one packet, in several, by rendezvous.
constexpr std::size_t kSizes[] = {0, 1, 100, 20000, 5 * kMegabyte};

TEST_P(MessagesTest, ArriveWhicheverSideIsFirst) {
  MessagesJob job(GetParam(), 2);
  for (const std::size_t size : kSizes) {
    for (const bool receiver_first : {false, true}) {
      Bytes sent = pattern(size, 1);
      Bytes got(size);
      const auto post_send = [&] { return job.post(0, {send_to(1, sent)}); };
      const auto early = receiver_first ? nullptr : post_send();
      const auto receive = job.post(1, {receive_from(0, got)});
      const auto send = receiver_first ? post_send() : early;
      ASSERT_TRUE(job.finish());
      EXPECT_TRUE(send->status().ok()) << send->status().message();
      EXPECT_TRUE(receive->status().ok()) << receive->status().message();
      EXPECT_TRUE(got == sent) << size << " bytes";
      EXPECT_EQ(receive->source(), 0);
      EXPECT_EQ(send->source(), Message::kAnyRank);
    }
  }
}

TEST_P(MessagesTest, ArriveThoughNobodyWaitedForThemYet) {
  MessagesJob job(GetParam(), 2);
  for (const std::size_t size : kSizes) {
    Bytes early = pattern(size, 1);
    Bytes later = pattern(10, 2);
    Bytes got_early(size);
    Bytes got_later(10);
    job.post(0, {send_to(1, early)}, {.tag = 1});
    job.post(0, {send_to(1, later)}, {.tag = 2});
    ASSERT_TRUE(job.finish(*job.post(1, {receive_from(0, got_later)}, {.tag = 2})));
    EXPECT_EQ(got_later, later);
    job.post(1, {receive_from(0, got_early)}, {.tag = 1});
    ASSERT_TRUE(job.finish());
    EXPECT_TRUE(got_early == early) << size << " bytes";
  }
}

TEST_P(MessagesTest, CrossInBothDirections) {
  MessagesJob job(GetParam(), 2);
  std::vector<Bytes> sent = {pattern(5 * kMegabyte, 0), pattern(5 * kMegabyte, 1)};
  std::vector<Bytes> got(2, Bytes(5 * kMegabyte));
  for (const int rank : {0, 1}) {
    const auto i = static_cast<std::size_t>(rank);
    job.post(rank, {send_to(1 - rank, sent[i]), receive_from(1 - rank, got[i])});
  }
  ASSERT_TRUE(job.finish());
  EXPECT_TRUE(got[0] == sent[1]);
  EXPECT_TRUE(got[1] == sent[0]);
}

TEST_P(MessagesTest, ToOneselfArriveToo) {
  MessagesJob job(GetParam(), 1);
  for (const std::size_t size : kSizes) {
    Bytes sent = pattern(size, 3);
    Bytes got(size);
    job.post(0, {send_to(0, sent), receive_from(0, got)});
    ASSERT_TRUE(job.finish());
    EXPECT_TRUE(got == sent) << size << " bytes in one operation";
    std::fill(got.begin(), got.end(), std::uint8_t{0});
    const auto receive = job.post(0, {receive_from(Message::kAnyRank, got)});
    job.post(0, {send_to(0, sent)});
    ASSERT_TRUE(job.finish());
    EXPECT_TRUE(got == sent) << size << " bytes in two";
    EXPECT_EQ(receive->source(), 0);
  }
}

TEST_P(MessagesTest, OfOneTagArriveInTheOrderInWhichTheyWereSent) {
  constexpr int kCount = 60;
  MessagesJob job(GetParam(), 2);
  std::vector<Bytes> sent;
  std::vector<Bytes> got;
  for (int i = 0; i < kCount; ++i) {  // large ones between small ones must not be overtaken
    sent.push_back(pattern(i % 3 == 1 ? 300000 : 64, i));
    got.emplace_back(sent.back().size());
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    job.post(0, {send_to(1, sent[i])}, {.tag = 5});
    if (i >= kCount / 2) {  // half of them are there before they are asked for
      job.post(1, {receive_from(0, got[i - kCount / 2])}, {.tag = 5});
    }
  }
  for (std::size_t i = kCount / 2; i < kCount; ++i) {
    job.post(1, {receive_from(0, got[i])}, {.tag = 5});
  }
  ASSERT_TRUE(job.finish());
  EXPECT_TRUE(got == sent);
}

TEST_P(MessagesTest, AreToldApartByTagSpaceAndGroup) {
  MessagesJob job(GetParam(), 2);
  std::vector<MessagesJob::How> at_sender;
  std::vector<MessagesJob::How> at_receiver;
  for (const std::uint16_t group : {std::uint16_t{1}, static_cast<std::uint16_t>(TagLayout::kMaxGroup)}) {
    for (const Space space : {Space::user, Space::collective}) {
      for (const std::uint32_t tag : {0U, 1U, 0xffffffffU}) {
        at_sender.push_back({.tag = tag, .space = space, .channel = job.make_channel(0, group, job.shared_domain(0))});
        at_receiver.push_back({.tag = tag, .space = space, .channel = job.make_channel(1, group, job.shared_domain(1))});
      }
    }
  }
  const std::size_t count = at_sender.size();
  std::vector<Bytes> sent;
  std::vector<Bytes> got(count, Bytes(16));
  for (std::size_t i = 0; i < count; ++i) {
    sent.push_back(pattern(16, static_cast<int>(i)));
  }
  for (std::size_t i = 0; i < count; ++i) {
    job.post(0, {send_to(1, sent[i])}, at_sender[i]);
  }
  for (std::size_t i = count; i > 0; --i) {  // in another order than they were sent in
    const int from = i % 2 == 0 ? 0 : Message::kAnyRank;
    job.post(1, {receive_from(from, got[i - 1])}, at_receiver[i - 1]);
  }
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(got, sent);
}

TEST_P(MessagesTest, FromAnyRankTellWhoSentThem) {
  constexpr int kSenders = 4;
  constexpr std::size_t kSize = 300000;
  MessagesJob job(GetParam(), kSenders + 1);
  std::vector<Bytes> sent;
  std::vector<Bytes> got(kSenders, Bytes(kSize));
  for (int rank = 0; rank < kSenders; ++rank) {
    sent.push_back(pattern(kSize, rank));
  }
  std::vector<std::shared_ptr<Transfer>> receives;
  for (std::size_t i = 0; i < kSenders; ++i) {
    receives.push_back(job.post(kSenders, {receive_from(Message::kAnyRank, got[i])}));
    EXPECT_EQ(receives.back()->source(), Message::kAnyRank);
  }
  for (int rank = kSenders - 1; rank >= 0; --rank) {
    job.post(rank, {send_to(kSenders, sent[static_cast<std::size_t>(rank)])});
  }
  ASSERT_TRUE(job.finish());
  std::set<int> sources;
  for (std::size_t i = 0; i < kSenders; ++i) {
    const int source = receives[i]->source();
    ASSERT_TRUE(source >= 0 && source < kSenders);
    EXPECT_TRUE(sources.insert(source).second) << "twice from rank " << source;
    EXPECT_TRUE(got[i] == sent[static_cast<std::size_t>(source)]) << "from rank " << source;
  }
}

}  // namespace
}  // namespace torch_ucc
