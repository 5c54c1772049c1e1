// Messages that do not fit what waits for them, operations that end badly, and what is left to do
// before closing.
#include <gtest/gtest.h>

#include <algorithm>
#include <new>
#include <string>
#include <tuple>

#include "fakes/messages_job.h"
#include "messages/messages.h"

namespace torch_ucc {
namespace {

class MessagesFailure : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Go, MessagesFailure, testing::Values(Way::ucx, Way::memory), name_of);

constexpr std::size_t kMegabyte = std::size_t{1} << 20U;

void expect_invalid(const Transfer& op, const std::string& message) {
  EXPECT_EQ(op.status().code(), StatusCode::invalid);
  EXPECT_EQ(op.status().message(), "transfer: " + message);
}

// That the group can still be used, for small and large messages.
void expect_usable(MessagesJob& job) {
  for (const std::size_t size : {std::size_t{16}, 3 * kMegabyte}) {
    Bytes sent = pattern(size, 9);
    Bytes got(size);
    job.post(0, {send_to(1, sent)});
    job.post(1, {receive_from(0, got)});
    ASSERT_TRUE(job.finish());
    EXPECT_TRUE(got == sent) << size << " bytes";
  }
  EXPECT_FALSE(job.any_failed());
}

// --- sizes that do not match

struct Sizes {
  std::size_t sent = 0;
  std::size_t expected = 0;
};

// Longer and shorter than expected, by the ways in which they are sent and across them.
constexpr Sizes kMismatches[] = {
    {100, 50}, {10, 0}, {20000, 10000}, {5 * kMegabyte, 4 * kMegabyte}, {5 * kMegabyte, 100}, {kMegabyte, 0},
    {50, 100}, {0, 10}, {10000, 20000}, {4 * kMegabyte, 5 * kMegabyte}, {100, 5 * kMegabyte}, {0, kMegabyte},
};

class SizeMismatch : public testing::TestWithParam<std::tuple<Way, int>> {
 protected:
  enum class First : unsigned char { sender, receiver };

  // What rank 0 gets of rank 1 where it expects `sizes.expected` bytes. Checks what holds for every
  // mismatch.
  std::shared_ptr<Transfer> exchange(const Sizes& sizes, First first) {
    Bytes sent = pattern(sizes.sent, 1);
    Bytes got = Bytes(sizes.expected + kGuard, kUntouched);
    const Message receiving{Message::Kind::receive, std::get<int>(GetParam()), got.data(), sizes.expected};
    const auto early = first == First::receiver ? job_.post(0, {receiving}) : nullptr;
    const auto send = job_.post(1, {send_to(0, sent)});
    if (first == First::sender) {  // who has got the later message has seen the first
      Bytes marker(1);
      job_.post(1, {send_to(0, marker)}, {.tag = 1});
      EXPECT_TRUE(job_.finish(*job_.post(0, {receive_from(1, marker)}, {.tag = 1})));
    }
    auto receive = early ? early : job_.post(0, {receiving});
    EXPECT_TRUE(job_.finish());
    EXPECT_TRUE(send->status().ok()) << send->status().message();  // it did nothing wrong
    EXPECT_TRUE(std::all_of(got.end() - kGuard, got.end(), [](std::uint8_t byte) { return byte == kUntouched; }));
    return receive;
  }

  static constexpr std::ptrdiff_t kGuard = 4096;
  static constexpr std::uint8_t kUntouched = 0xa5;
  MessagesJob job_{std::get<Way>(GetParam()), 2};
};

TEST_P(SizeMismatch, EndsTheReceiveAloneWithTheSenderAndBothSizes) {
  for (const Sizes& sizes : kMismatches) {
    for (const First first : {First::sender, First::receiver}) {
      const auto receive = exchange(sizes, first);
      expect_invalid(*receive, "the message from rank 1 has " + std::to_string(sizes.sent) + " bytes, and this rank expects " +
                                   std::to_string(sizes.expected));
      EXPECT_EQ(receive->source(), 1);
    }
  }
  expect_usable(job_);
}

INSTANTIATE_TEST_SUITE_P(From, SizeMismatch,
                         testing::Combine(testing::Values(Way::ucx, Way::memory), testing::Values(1, Message::kAnyRank)),
                         [](const auto& info) {
                           return std::string(std::get<int>(info.param) == 1 ? "Rank1" : "AnyRank") +
                                  (std::get<Way>(info.param) == Way::ucx ? "ByUcx" : "ThroughMemory");
                         });

// Peers wait for the other messages: they are moved all the same, those too that were not yet under
// way.
TEST_P(MessagesFailure, OneThatDoesNotFitDoesNotKeepTheOthersBack) {
  constexpr std::size_t kCount = 2 * Messages::kWindow;
  MessagesJob job(GetParam(), 2);
  Bytes sent = pattern(kCount, 1);
  Bytes got(kCount);
  Bytes too_long = pattern(3, 2);
  Bytes too_short(2);
  std::vector<Message> sends;
  std::vector<Message> receives = {receive_from(1, too_short)};
  for (std::size_t i = 0; i < kCount; ++i) {
    sends.push_back({Message::Kind::send, 0, &sent[i], 1});
    receives.push_back({Message::Kind::receive, 1, &got[i], 1});
  }
  const auto receive = job.post(0, receives);
  job.post(1, {send_to(0, too_long)});
  Bytes later(kCount);
  job.post(1, {send_to(0, sent)}, {.tag = 1});  // who has got this has got the other
  ASSERT_TRUE(job.finish(*job.post(0, {receive_from(1, later)}, {.tag = 1})));
  EXPECT_FALSE(receive->done());
  job.post(1, sends);
  ASSERT_TRUE(job.finish());
  expect_invalid(*receive, "the message from rank 1 has 3 bytes, and this rank expects 2");
  EXPECT_EQ(got, sent);
  expect_usable(job);
}

TEST_P(MessagesFailure, TheFirstOfSeveralThatDoNotFitIsReported) {
  MessagesJob job(GetParam(), 2);
  Bytes sent = pattern(10, 1);
  Bytes got(10);
  job.post(0, {{Message::Kind::send, 1, sent.data(), 3}, {Message::Kind::send, 1, sent.data(), 4}});
  const auto receive = job.post(1, {receive_from(0, got), receive_from(0, got)});
  ASSERT_TRUE(job.finish());
  expect_invalid(*receive, "the message from rank 0 has 3 bytes, and this rank expects 10");
}

// --- rounds

TEST_P(MessagesFailure, AfterAMessageThatDoesNotFitThereIsNoFurtherRound) {
  MessagesJob job(GetParam(), 2);
  Bytes sent = pattern(3, 1);
  Bytes got(10);
  int asked = 0;
  job.post(0, {send_to(1, sent)});
  const auto receive = job.post(1, {receive_from(0, got)}, {.next_round = [&asked] {
                                  ++asked;
                                  return std::vector<Message>();
                                }});
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(receive->status().code(), StatusCode::invalid);
  EXPECT_EQ(asked, 0);
}

TEST_P(MessagesFailure, ARoundThatIsRefusedEndsItsOperationAlone) {
  MessagesJob job(GetParam(), 2);
  Bytes sent = pattern(8, 1);
  Bytes got(8);
  job.post(0, {send_to(1, sent)});
  const auto receive = job.post(1, {receive_from(0, got)}, {.next_round = []() -> std::vector<Message> {
                                  throw StatusError(Status(StatusCode::invalid, "the ranks sent different dtypes"));
                                }});
  ASSERT_TRUE(job.finish());
  expect_invalid(*receive, "the ranks sent different dtypes");
  expect_usable(job);
}

TEST_P(MessagesFailure, ARoundThatCannotBeMadeFailsTheGroup) {
  MessagesJob job(GetParam(), 2);
  Bytes sent = pattern(8, 1);
  Bytes got(8);
  const auto send = job.post(0, {send_to(1, sent)});
  const auto receive =
      job.post(1, {receive_from(0, got)}, {.next_round = []() -> std::vector<Message> { throw std::bad_alloc(); }});
  ASSERT_TRUE(job.finish());
  EXPECT_TRUE(send->status().ok());
  EXPECT_EQ(receive->status().code(), StatusCode::transport);
  EXPECT_EQ(receive->status().message(), std::string("transfer: ") + std::bad_alloc().what());
  EXPECT_TRUE(job.domain(1).failed());
  EXPECT_FALSE(job.domain(0).failed());
}

// --- peers that cannot be reached

TEST(MessagesFailureByUcx, APeerThatCannotBeReachedFailsTheGroupAndTheRestIsNotPosted) {
  UcxJob job(2);
  job.worker(0).set_peers({job.worker(0).address(), unreachable_address()});
  Bytes sent = pattern(8, 1);
  Bytes got(8);
  const auto op = job.post(0, {send_to(1, sent), receive_from(0, got)});
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(op->status().code(), StatusCode::transport);
  EXPECT_EQ(op->status().message().rfind("transfer: sending to rank 1: ucp_ep_create: UCX says '", 0), 0U)
      << op->status().message();
  EXPECT_TRUE(job.domain(0).failed());
  EXPECT_EQ(job.outstanding(0), 0U);
}

// --- operations that are given up

// Gives operations of rank 1 up, as the engine does at a timeout.
struct GivenUp {
  explicit GivenUp(MessagesJob& the_job) : job(the_job), channel(job.make_channel(1, MessagesJob::kGroup, domain)) {}

  void fail() { job.engine(1).fail(*domain, Status(StatusCode::timeout, "too late")); }

  MessagesJob& job;
  const std::shared_ptr<FailureDomain> domain = std::make_shared<FailureDomain>("closed");
  const std::shared_ptr<Channel> channel;
};

constexpr std::size_t kFromOneByteToMegabytes[] = {1, 64, 4000, 100000, 5 * kMegabyte};

TEST_P(MessagesFailure, AMessageThatComesLateIsNotWrittenToMemoryOfTheCaller) {
  for (const std::size_t size : kFromOneByteToMegabytes) {
    Bytes sent = pattern(size, 1);
    Bytes got(size);
    MessagesJob job(GetParam(), 2);
    GivenUp given_up(job);
    const auto receive = job.post(1, {receive_from(0, got)}, {.tag = 1, .channel = given_up.channel});
    given_up.fail();
    ASSERT_TRUE(job.finish(*receive));
    EXPECT_EQ(job.outstanding(1), 0U) << "the receive was taken back";
    const Bytes mine(size, 100);
    got = mine;
    job.post(0, {send_to(1, sent)}, {.tag = 1});
    Bytes marker(1);
    job.post(0, {send_to(1, marker)}, {.tag = 2});
    ASSERT_TRUE(job.finish(*job.post(1, {receive_from(0, marker)}, {.tag = 2})));
    EXPECT_TRUE(got == mine) << size << " bytes";
  }
}

TEST_P(MessagesFailure, WhatBelongsToTheOperationIsReceivedByOneThatGoesOnAlone) {
  for (const std::size_t size : kFromOneByteToMegabytes) {
    Bytes sent = pattern(size, 1);
    Bytes got(size);
    MessagesJob job(GetParam(), 2);
    Message message = receive_from(0, got);
    message.is_callers = false;
    const auto receive = job.post(1, {message}, {.tag = 1});
    EXPECT_TRUE(receive->take_back(Op::After::goes_on));
    job.post(0, {send_to(1, sent)}, {.tag = 1});
    ASSERT_TRUE(job.finish(*receive));
    EXPECT_TRUE(got == sent) << size << " bytes";
  }
}

// The rest of a message that has begun to arrive is received, and dropped.
TEST_P(MessagesFailure, AMessageThatHasBegunToArriveIsNotWrittenToMemoryOfTheCaller) {
  constexpr std::size_t kSize = 20 * kMegabyte;
  Bytes sent = pattern(kSize, 1);
  Bytes got(kSize);
  MessagesJob job(GetParam(), 2);
  GivenUp given_up(job);
  const auto receive = job.post(1, {receive_from(0, got)}, {.tag = 1, .channel = given_up.channel});
  job.post(0, {send_to(1, sent)}, {.tag = 1});
  while (got[0] != sent[0] && !receive->done()) {
    job.drive();
  }
  ASSERT_FALSE(receive->done()) << "it ended within a round: the test needs a longer message";
  given_up.fail();
  ASSERT_TRUE(job.finish(*receive));
  const Bytes mine(kSize, 100);
  got = mine;
  Bytes marker(1);
  const auto domain = std::make_shared<FailureDomain>("another group");
  job.post(0, {send_to(1, marker)}, {.channel = job.make_channel(0, 9, domain)});
  job.post(1, {receive_from(0, marker)}, {.channel = job.make_channel(1, 9, domain)});
  ASSERT_TRUE(job.finish());
  EXPECT_EQ(job.outstanding(0), 0U);
  EXPECT_TRUE(got == mine);
  EXPECT_EQ(job.outstanding(1), 0U);
}

// The peer gets what was to be sent, or nothing, whatever the caller does with its memory after the
// error.
TEST(MessagesFailureByUcx, AMessageThatWasGivenUpIsReceivedAsItWas) {
  for (const std::size_t size : kFromOneByteToMegabytes) {
    Bytes sent = pattern(size, 1);
    Bytes got(size);
    UcxJob job(2);
    GivenUp given_up(job);
    const auto send = job.post(1, {send_to(0, sent)}, {.tag = 1, .channel = given_up.channel});
    given_up.fail();
    ASSERT_TRUE(job.finish(*send));
    sent.assign(size, 100);
    Bytes marker(1);
    job.post(1, {receive_from(0, marker)}, {.tag = 2});  // so that rank 1 drives
    const auto receive = job.post(0, {receive_from(1, got)}, {.tag = 1});
    ASSERT_TRUE(job.finish(*receive));
    EXPECT_TRUE(receive->status().ok());
    EXPECT_TRUE(got == pattern(size, 1)) << size << " bytes";
    job.post(0, {send_to(1, marker)}, {.tag = 2});
    ASSERT_TRUE(job.finish());
  }
}

// Through memory, what has not been sent yet is taken back.
TEST(MessagesFailureThroughMemory, AMessageThatWasGivenUpIsReceivedAsItWasOrNotAtAll) {
  for (const std::size_t size : kFromOneByteToMegabytes) {
    Bytes sent = pattern(size, 1);
    Bytes got(size);
    MessagesJob job(Way::memory, 2);
    GivenUp given_up(job);
    const auto send = job.post(1, {send_to(0, sent)}, {.tag = 1, .channel = given_up.channel});
    given_up.fail();
    ASSERT_TRUE(job.finish(*send));
    EXPECT_EQ(job.outstanding(1), 0U);
    sent.assign(size, 100);
    const auto receive = job.post(0, {receive_from(1, got)}, {.tag = 1});
    Bytes marker(1);
    job.post(1, {send_to(0, marker)}, {.tag = 2});
    ASSERT_TRUE(job.finish(*job.post(0, {receive_from(1, marker)}, {.tag = 2})));
    if (size <= shm::Mail::kUnasked) {
      EXPECT_TRUE(receive->done() && receive->status().ok());
      EXPECT_TRUE(got == pattern(size, 1)) << size << " bytes";
    } else {
      EXPECT_EQ(receive->status().code(), StatusCode::transport);
      EXPECT_TRUE(got == Bytes(size)) << size << " bytes";
    }
  }
}

// Rank 1 gives its side of a message up while data is under way. Returns how the side of rank 0 ends.
Status given_up_in_the_middle(Message::Kind given_up_side) {
  Bytes sent = pattern(20 * kMegabyte, 1);
  Bytes got(sent.size());
  MessagesJob job(Way::memory, 2);
  GivenUp given_up(job);
  const bool rank_1_sends = given_up_side == Message::Kind::send;
  const auto theirs =
      job.post(1, {rank_1_sends ? send_to(0, sent) : receive_from(0, got)}, {.tag = 1, .channel = given_up.channel});
  const auto mine = job.post(0, {rank_1_sends ? receive_from(1, got) : send_to(1, sent)}, {.tag = 1});
  while (got[0] != sent[0] && !mine->done()) {
    job.drive();
  }
  EXPECT_FALSE(theirs->done() || mine->done()) << "it ended within a round: the test needs a longer message";
  given_up.fail();
  EXPECT_TRUE(job.finish());
  EXPECT_EQ(job.outstanding(0), 0U);
  EXPECT_EQ(job.outstanding(1), 0U);
  return mine->status();
}

// The other side need not wait for its timeout.
TEST(MessagesFailureThroughMemory, AMessageThatIsGivenUpInTheMiddleFailsItsReceive) {
  const Status status = given_up_in_the_middle(Message::Kind::send);
  EXPECT_EQ(status.code(), StatusCode::transport);
  EXPECT_EQ(status.message(), "transfer: receiving from rank 1: the sender has given up the message");
}

TEST(MessagesFailureThroughMemory, AReceiveThatIsGivenUpInTheMiddleFailsItsSend) {
  const Status status = given_up_in_the_middle(Message::Kind::receive);
  EXPECT_EQ(status.code(), StatusCode::transport);
  EXPECT_EQ(status.message(), "transfer: sending to rank 1: the receiver has given up the message");
}

// --- members that have ended

TEST_P(MessagesFailure, WhatIsNeededOfALostMemberDependsOnTheMessages) {
  MessagesJob job(GetParam(), 3);
  Bytes bytes(8);
  const auto need = [&](std::vector<Message> messages, int rank) {
    return Transfer(job.channel(0), Space::user, 0, messages).need_of({rank, Status()});
  };
  EXPECT_EQ(need({send_to(1, bytes)}, 1), Op::Need::missing);
  EXPECT_EQ(need({send_to(1, bytes)}, 2), Op::Need::none);
  EXPECT_EQ(need({receive_from(1, bytes)}, 1), Op::Need::direct);
  EXPECT_EQ(need({receive_from(1, bytes)}, 2), Op::Need::none);
  EXPECT_EQ(need({receive_from(Message::kAnyRank, bytes)}, 2), Op::Need::direct);
  EXPECT_EQ(need({receive_from(1, bytes), send_to(1, bytes)}, 1), Op::Need::missing);
}

TEST_P(MessagesFailure, NothingIsNeededOfALostMemberWhoseMessageHasCome) {
  MessagesJob job(GetParam(), 3);
  Bytes sent = pattern(8, 1);
  Bytes first(8);
  Bytes second(8);
  job.post(1, {send_to(0, sent)});
  const auto op = job.post(0, {receive_from(1, first), receive_from(2, second)});
  while (first != sent) {
    job.drive();
  }
  EXPECT_EQ(op->need_of({1, Status()}), Op::Need::none);
  EXPECT_EQ(op->need_of({2, Status()}), Op::Need::direct);
  job.post(2, {send_to(0, sent)});
  ASSERT_TRUE(job.finish());
}

}  // namespace
}  // namespace torch_ucc
