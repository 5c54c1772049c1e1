// What is particular to messages through memory. What holds for every carrier: tests/cpp/messages.
#include "shm/mail.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fakes/messages_job.h"

namespace torch_ucc::shm {
namespace {

using Kind = MailLine::Kind;

class MailTest : public testing::Test {
 protected:
  void serve(int rank) {
    job_.engine(rank).with_baton(hard_limit(), [&](LoopToken& token) { EXPECT_TRUE(job_.mail(rank).progress(token).ok()); });
  }
  MessagesJob job_{Way::memory, 2};
};

// --- what is kept until a receive matches it

// The sender stops before the receiver keeps more than it may, for small and for large messages.
TEST_F(MailTest, AReceiverKeepsABoundedPartOfWhatIsSent) {
  for (const std::size_t size : {std::size_t{3000}, Mail::kUnasked}) {
    const std::size_t count = 3 * Mail::kKept / size / 2;
    std::vector<Bytes> sent;
    std::vector<Bytes> got(count, Bytes(size));
    std::vector<std::shared_ptr<Transfer>> sends;
    for (std::size_t i = 0; i < count; ++i) {
      sent.push_back(pattern(size, static_cast<int>(i)));
    }
    for (std::size_t i = 0; i < count; ++i) {
      sends.push_back(job_.post(0, {send_to(1, sent[i])}));
      serve(1);
      serve(0);
    }
    const auto ended = [&] { return std::count_if(sends.begin(), sends.end(), [](const auto& send) { return send->done(); }); };
    EXPECT_LE(static_cast<std::size_t>(ended()) * size, Mail::kKept);
    EXPECT_LT(ended(), static_cast<std::ptrdiff_t>(count));
    EXPECT_GT(static_cast<std::size_t>(ended()) * (size + 128), Mail::kKept - 2 * Mail::kUnasked);
    for (std::size_t i = 0; i < count; ++i) {
      job_.post(1, {receive_from(0, got[i])});
    }
    ASSERT_TRUE(job_.finish());
    EXPECT_TRUE(got == sent) << size << " bytes";
  }
}

// A receiver that takes what it has kept lets its sender send without asking again, also if nobody
// wanted the data.
TEST_F(MailTest, RoomThatIsFreeAgainIsUsedAgain) {
  Bytes sent = pattern(Mail::kUnasked, 1);
  Bytes got(sent.size());
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(job_.finish(*job_.post(0, {send_to(1, sent)})) || i == 0) << "not without the receiver, message " << i;
    Bytes too_short(sent.size() - (i % 2 == 0 ? 1 : 0));
    serve(1);
    job_.post(1, {receive_from(0, i % 2 == 0 ? too_short : got)});
    ASSERT_TRUE(job_.finish());
  }
}

TEST_F(MailTest, MoreMessagesThanLinesArriveInTheirOrder) {
  constexpr std::size_t kCount = 4 * MailBox::kLines;
  std::vector<Bytes> sent;
  std::vector<Bytes> got(kCount, Bytes(8));
  for (std::size_t i = 0; i < kCount; ++i) {
    sent.push_back(pattern(8, static_cast<int>(i)));
  }
  for (Bytes& each : sent) {  // nobody reads yet
    job_.post(0, {send_to(1, each)});
  }
  for (Bytes& each : got) {
    job_.post(1, {receive_from(0, each)});
  }
  ASSERT_TRUE(job_.finish());
  EXPECT_TRUE(got == sent);
}

// What a closed group leaves with the receiver goes, and its sender may send without asking again.
TEST_F(MailTest, MessagesOfAGroupThatIsClosedAreDropped) {
  const auto domain = std::make_shared<FailureDomain>("another group");
  const auto sender = job_.make_channel(0, 9, domain);
  Bytes sent = pattern(Mail::kUnasked, 1);
  const auto send = [&] {
    const auto op = job_.post(0, {send_to(1, sent)}, {.channel = sender});
    serve(1);
    return op;
  };
  std::vector<std::shared_ptr<Transfer>> sends;
  do {
    sends.push_back(send());
  } while (sends.back()->done());
  job_.engine(1).with_baton(hard_limit(), [&](LoopToken& token) { job_.mail(1).drop_group(token, 9); });
  serve(1);
  ASSERT_TRUE(job_.finish());
  EXPECT_TRUE(sends.back()->status().ok()) << "the receiver has declined what was offered";
  EXPECT_TRUE(send()->done());
  // What still comes takes up no room of other messages.
  for (std::size_t i = 0; i < 2 * Mail::kKept / Mail::kUnasked; ++i) {
    EXPECT_TRUE(send()->done());
  }
  Bytes marker = pattern(8, 2);
  Bytes got(8);
  EXPECT_TRUE(job_.post(0, {send_to(1, marker)})->done());
  job_.post(1, {receive_from(0, got)});
  ASSERT_TRUE(job_.finish());
  EXPECT_EQ(got, marker);
}

// --- any mix

// Messages between all ranks, themselves included, of all sizes, with few tags, posted in any order.
// Those of one pair and tag arrive in order; a receive from any gets the next of whichever sender.
TEST(Mail, AnyMixOfMessagesArrives) {
  for (std::mt19937::result_type seed = 0; seed < 60; ++seed) {
    constexpr int kRanks = 3;
    std::mt19937 random(seed);
    const auto up_to = [&](std::size_t most) { return std::uniform_int_distribution<std::size_t>(0, most)(random); };
    MessagesJob job(Way::memory, kRanks);
    struct Sent {
      int from, to;
      std::uint32_t tag;
      Bytes bytes;
    };
    struct Got {
      std::shared_ptr<Transfer> op;
      int from, to;
      std::uint32_t tag;
      Bytes bytes;
    };
    constexpr std::size_t kSizes[] = {0,     1, MailLine::kSmall, MailLine::kSmall + 1, 5000, Mail::kUnasked, Mail::kUnasked + 1,
                                      300000};
    std::vector<Sent> sent;
    for (int i = 0; i < 120; ++i) {
      const auto tag = static_cast<std::uint32_t>(up_to(2));
      // All of one tag to one rank have one size, because a receive from any may get each of them
      const int to = static_cast<int>(up_to(kRanks - 1));
      const std::size_t size = kSizes[(tag * 3 + static_cast<std::size_t>(to) + seed) % std::size(kSizes)];
      sent.push_back({static_cast<int>(up_to(kRanks - 1)), to, tag, pattern(size, i)});
    }
    std::vector<Got> got;
    got.reserve(sent.size());
    std::vector<std::size_t> order(2 * sent.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      order[i] = i % sent.size();
    }
    std::shuffle(order.begin(), order.end(), random);
    const bool from_any = seed % 3 == 0;
    std::vector<bool> seen(sent.size());
    std::map<std::pair<int, int>, std::vector<std::size_t>> posted;  // by receiver and tag, in the order of posting
    std::map<std::tuple<int, int, std::uint32_t>, std::vector<std::size_t>> in_order;
    for (const std::size_t i : order) {
      Sent& message = sent[i];
      if (!seen[i]) {
        seen[i] = true;
        in_order[{message.from, message.to, message.tag}].push_back(i);
        job.post(message.from, {send_to(message.to, message.bytes)}, {.tag = message.tag});
      } else {
        got.push_back(
            {nullptr, from_any ? Message::kAnyRank : message.from, message.to, message.tag, Bytes(message.bytes.size())});
        Got& receive = got.back();
        receive.op = job.post(message.to, {receive_from(receive.from, receive.bytes)}, {.tag = message.tag});
      }
      if (up_to(3) == 0) {
        job.drive();
      }
    }
    ASSERT_TRUE(job.finish()) << "seed " << seed;
    for (const Got& receive : got) {
      ASSERT_TRUE(receive.op->status().ok()) << receive.op->status().message();
      std::vector<std::size_t>& next = in_order[{receive.op->source(), receive.to, receive.tag}];
      ASSERT_FALSE(next.empty());
      ASSERT_TRUE(receive.bytes == sent[next.front()].bytes) << "seed " << seed;
      next.erase(next.begin());
    }
  }
}

// --- peers that lie

TEST_F(MailTest, APeerThatSendsWhatCannotBeFailsTheMessagesWithItAndNoOthers) {
  Bytes bytes(100);
  Bytes own = pattern(100, 1);
  const auto receive = job_.post(0, {receive_from(1, bytes)});
  const auto send = job_.post(0, {send_to(1, bytes)}, {.tag = 3});
  MailLine& line = job_.boxes().box(1, 0)->lines[0];
  line.kind = Kind::more;
  line.stamp.store(1);
  ASSERT_TRUE(job_.finish(*receive));
  EXPECT_EQ(receive->status().code(), StatusCode::transport);
  EXPECT_EQ(receive->status().message(), "transfer: receiving from rank 1: the memory through which that rank sends is corrupt");
  EXPECT_TRUE(job_.domain(0).failed());
  const auto domain = std::make_shared<FailureDomain>("another group");
  const auto channel = job_.make_channel(0, 9, domain);
  const auto later = job_.post(0, {receive_from(1, bytes)}, {.channel = channel});
  ASSERT_TRUE(job_.finish(*later));
  EXPECT_EQ(later->status().code(), StatusCode::transport);
  const auto alone = std::make_shared<FailureDomain>("of itself");
  const auto to_itself = job_.make_channel(0, 10, alone);
  Bytes back(100);
  ASSERT_TRUE(job_.finish(*job_.post(0, {send_to(0, own), receive_from(0, back)}, {.channel = to_itself})));
  EXPECT_EQ(back, own);
  EXPECT_TRUE(send->done());
}

// Lines that may be or may not, with sizes, numbers and kinds at random. Everything ends, with an
// error or not, and nothing is written outside the memory of the messages.
TEST(Mail, SurvivesWhateverAPeerWrites) {
  for (std::mt19937::result_type seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    MessagesJob job(Way::memory, 2);
    MailBox& theirs = *job.boxes().box(1, 0);
    constexpr std::size_t kGuard = 64;
    std::vector<Bytes> got(4, Bytes(40000 + kGuard, 7));
    for (Bytes& each : got) {
      job.post(0, {{Message::Kind::receive, 1, each.data(), each.size() - kGuard}},
               {.tag = static_cast<std::uint32_t>(random() % 2)});
      job.post(0, {send_to(1, each)}, {.tag = static_cast<std::uint32_t>(random() % 2)});
    }
    for (std::uint64_t i = 0; i < 200; ++i) {
      MailLine& line = theirs.lines[i % MailBox::kLines];
      const auto some = [&](std::uint64_t right) {
        return random() % 4 != 0 ? right : std::uint64_t{random()} << (random() % 33U);
      };
      line.kind = static_cast<Kind>(random() % 7);
      line.tag = some(TagLayout::pack(Space::user, MessagesJob::kGroup, 1, random() % 2));
      line.bytes = some(random() % 3 == 0 ? 40000 : 10000);
      line.length = static_cast<std::uint32_t>(some(random() % 3 == 0 ? 0 : 10000));
      line.message = static_cast<std::uint32_t>(some(random() % 4));
      line.stamp.store(i + 1);
      theirs.taken.store(some(i));
      theirs.settled.store(some(i * 1000));
      if (random() % 3 == 0) {
        job.drive();
      }
    }
    job.drive();
    for (const Bytes& each : got) {
      EXPECT_TRUE(std::all_of(each.end() - kGuard, each.end(), [](std::uint8_t byte) { return byte == 7; })) << "seed " << seed;
    }
    job.engine(0).fail(job.domain(0), Status(StatusCode::timeout, "the end"));
    ASSERT_TRUE(job.finish()) << "seed " << seed;
    EXPECT_EQ(job.outstanding(0), 0U) << "seed " << seed;
  }
}

// --- a caller that is interrupted

TEST_F(MailTest, AMessageThatGoesOnWithoutItsCallerIsSentFromACopy) {
  Bytes sent = pattern(5 << 20U, 1);
  const Bytes expected = sent;
  Bytes got(sent.size());
  const auto send = job_.post(0, {send_to(1, sent)});
  ASSERT_TRUE(send->take_back(Op::After::goes_on));
  std::fill(sent.begin(), sent.end(), std::uint8_t{0});
  job_.post(1, {receive_from(0, got)});
  ASSERT_TRUE(job_.finish());
  EXPECT_TRUE(got == expected);
}

// --- notes

TEST_F(MailTest, NotesComeInTheirOrder) {
  std::vector<Bytes> texts{Bytes(TagLayout::kMaxNote, 'a'), Bytes(3, 'b')};
  job_.post_notes(texts);
  const auto take = [&] {
    std::optional<std::string> note;
    serve(1);
    job_.engine(1).with_baton(hard_limit(), [&](LoopToken& token) { note = job_.mail(1).take_note(token); });
    return note;
  };
  EXPECT_EQ(take(), std::string(TagLayout::kMaxNote, 'a'));
  EXPECT_EQ(take(), "bbb");
  EXPECT_EQ(take(), std::nullopt);
}

// --- neighbours

TEST(Mail, OnlyThoseWhoMayBeWaitingAreRung) {
  Boxes boxes(2);
  const Bell bell;
  std::vector<Mail::Neighbour> neighbours = boxes.neighbours_of(0);
  neighbours.front().bell = &bell;
  Mail mail(0, neighbours);
  Mail peer(1, boxes.neighbours_of(1));
  Engine engine(mail, {});
  engine.stop_background();
  const auto rung = [&](const std::function<void(LoopToken&)>& body) {
    Bell::Sleep sleep(bell);
    engine.with_baton(hard_limit(), body);
    return sleep.wait(Clock::duration::zero());
  };
  EXPECT_FALSE(rung([&](LoopToken& token) { EXPECT_TRUE(mail.progress(token).ok()); })) << "nothing happened";
  const auto domain = std::make_shared<FailureDomain>("group");
  const auto channel = [&](Mail& of, int rank) {
    return std::make_shared<Channel>(of, 2, std::vector<ChannelMember>{{0, nullptr}, {1, nullptr}}, rank, domain);
  };
  Bytes small = pattern(8, 1);
  Bytes large = pattern(20000, 1);
  Bytes got(20000);
  Transfer first(channel(peer, 1), Space::user, 0, {send_to(0, small)});
  Transfer second(channel(peer, 1), Space::user, 1, {send_to(0, large)});
  engine.with_baton(hard_limit(), [&](LoopToken& token) { EXPECT_TRUE(first.start(token).ok()); });
  EXPECT_FALSE(rung([&](LoopToken& token) { EXPECT_TRUE(mail.progress(token).ok()); })) << "there is room for more lines";
  engine.with_baton(hard_limit(), [&](LoopToken& token) { EXPECT_TRUE(second.start(token).ok()); });
  EXPECT_TRUE(rung([&](LoopToken& token) { EXPECT_TRUE(mail.progress(token).ok()); })) << "data was taken";
}

}  // namespace
}  // namespace torch_ucc::shm
