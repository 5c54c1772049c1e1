#include "messages/channel.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fakes/messages_job.h"

namespace torch_ucc {
namespace {

bool rings(const Bell& bell, const std::function<void()>& body) {
  Bell::Sleep sleep(bell);
  body();
  return sleep.wait(Clock::duration::zero());
}

// Notes what it is asked to carry.
class NotingCarrier final : public Carrier {
 public:
  void send(LoopToken& /*token*/, std::uint64_t position, std::uint64_t tag, Parcel& /*parcel*/) override {
    note("send", position, tag);
  }
  void receive(LoopToken& /*token*/, std::uint64_t position, std::uint64_t tag, Parcel& /*parcel*/) override {
    note("receive", position, tag);
  }
  void receive_from_any(LoopToken& /*token*/, std::uint64_t tag, Parcel& /*parcel*/) override { note("receive", 99, tag); }
  bool receive_arrived(LoopToken& /*token*/, std::uint64_t /*tag*/, Parcel& /*parcel*/) override { return false; }
  void cancel(LoopToken& /*token*/, Parcel& /*parcel*/) override {}
  bool cancels_at_once(std::uint64_t position) const override { return position == 5; }
  Status progress(LoopToken& /*token*/) override { return {}; }

  std::string noted;

 private:
  void note(const std::string& what, std::uint64_t position, std::uint64_t tag) {
    noted = what + " " + std::to_string(position) + " as rank " + std::to_string(TagLayout::source_of(tag));
  }
};

// Rank 1 of 3, at positions 5, 1 and 0 of a context of 6. Rank 0 has a bell for us, rank 2 is on
// another host.
class ChannelTest : public testing::Test {
 protected:
  NotingCarrier carrier_;
  const Bell bell_;
  const std::shared_ptr<FailureDomain> domain_ = std::make_shared<FailureDomain>("group");
  const std::shared_ptr<Channel> channel_ptr_ =
      std::make_shared<Channel>(carrier_, 9, std::vector<ChannelMember>{{5, &bell_}, {1, nullptr}, {0, nullptr}}, 1, domain_);
  const Channel& channel_ = *channel_ptr_;
};

TEST_F(ChannelTest, KnowsItsGroup) {
  EXPECT_EQ(channel_.rank(), 1);
  EXPECT_EQ(channel_.size(), 3);
  EXPECT_EQ(&channel_.domain(), domain_.get());
  EXPECT_EQ(&channel_.carrier(), &carrier_);
}

TEST_F(ChannelTest, ItsTagsAreThoseOfTheGroup) {
  EXPECT_EQ(channel_.tag_from(2, Space::collective, 4), TagLayout::pack(Space::collective, 9, 2, 4));
}

TEST_F(ChannelTest, RingsWhoeverHasABell) {
  EXPECT_TRUE(rings(bell_, [this] { channel_.ring(0); }));
  EXPECT_TRUE(rings(bell_, [this] { channel_.ring_all(); }));
  EXPECT_FALSE(rings(bell_, [this] {
    channel_.ring(1);
    channel_.ring(2);
  }));
}

TEST_F(ChannelTest, IsRungByThoseWhoHaveABellAndNeedsNoneForItself) {
  EXPECT_TRUE(channel_.rings(0));
  EXPECT_TRUE(channel_.rings(1));
  EXPECT_FALSE(channel_.rings(2));
}

// The tag of what is sent has the own rank, and that of what is received the rank of the sender.
TEST_F(ChannelTest, RanksAreFoundAtTheirPositionsInTheContext) {
  Engine engine(carrier_, {});
  const auto noted = [&](Message::Kind kind, int peer) {
    Transfer op(channel_ptr_, Space::user, 0, {});
    Parcel parcel(op, {kind, peer, nullptr, 0});
    engine.with_baton(hard_limit(), [&](LoopToken& token) { channel_.post(token, Space::user, 4, parcel); });
    return carrier_.noted;
  };
  EXPECT_EQ(noted(Message::Kind::send, 0), "send 5 as rank 1");
  EXPECT_EQ(noted(Message::Kind::send, 1), "send 1 as rank 1");
  EXPECT_EQ(noted(Message::Kind::receive, 2), "receive 0 as rank 2");
  EXPECT_EQ(noted(Message::Kind::receive, 0), "receive 5 as rank 0");
  EXPECT_EQ(noted(Message::Kind::receive, Message::kAnyRank), "receive 99 as rank 0");
}

}  // namespace
}  // namespace torch_ucc
