// The engine once a member of a group has ended.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "fakes/rig.h"
#include "progress/engine.h"

namespace torch_ucc {
namespace {

const Status kCut(StatusCode::transport, "the wire is cut");
const Loss kLoss{1, Status(StatusCode::peer_gone, "rank 1 (host b, pid 7) has died")};
constexpr milliseconds kShort{30};
constexpr milliseconds kLong = kHardLimit;

struct LossRig {
  explicit LossRig(milliseconds quiet, milliseconds verdict = milliseconds(0))
      : engine(transport, {}, Bell(), {.verdict = verdict, .quiet = quiet}) {}

  std::shared_ptr<FakeOp> post(FakeOp::Plan plan, Follow follow = Follow::waits) {
    plan.domain = &domain;
    auto op = make_op(std::move(plan));
    engine.post(op, follow);
    return op;
  }
  bool wait(FakeOp& op) { return engine.wait(op, hard_limit()); }
  void expect_lost(const FakeOp& op) {
    EXPECT_EQ(op.code(), StatusCode::peer_gone);
    EXPECT_NE(op.message().find("rank 1 (host b, pid 7) has died"), std::string::npos) << op.message();
    EXPECT_TRUE(domain.failed());
    EXPECT_FALSE(engine.failed());
  }

  FailureDomain domain{"group"};
  FakeTransport transport;
  Engine engine;
};

TEST(EngineLoss, WhatEndsWellAllTheSameHasEndedWell) {
  LossRig rig(kLong);
  const auto before = rig.post({.polls = 100});
  rig.engine.lose(rig.domain, kLoss);
  ASSERT_TRUE(rig.wait(*before));
  EXPECT_EQ(before->code(), StatusCode::ok);
  const auto after = rig.post({.polls = 100});
  ASSERT_TRUE(rig.wait(*after));
  EXPECT_EQ(after->code(), StatusCode::ok);
  EXPECT_FALSE(rig.domain.failed());
}

TEST(EngineLoss, WhatTheMemberNeverSentFailsTheGroupAtOnce) {
  LossRig rig(kLong);
  const auto op = rig.post({.polls = FakeOp::kNever, .need = Op::Need::missing});
  rig.engine.lose(rig.domain, kLoss);
  ASSERT_TRUE(rig.wait(*op));
  rig.expect_lost(*op);
}

TEST(EngineLoss, NothingIsStartedThatNeedsWhatTheMemberNeverSent) {
  LossRig rig(kLong);
  rig.engine.lose(rig.domain, kLoss);
  const auto op = rig.post({.need = Op::Need::missing});
  ASSERT_TRUE(rig.wait(*op));
  EXPECT_EQ(op->starts(), 0);
  rig.expect_lost(*op);
}

TEST(EngineLoss, WhatMayStillArriveIsWaitedForUntilItIsQuiet) {
  for (const Op::Need need : {Op::Need::direct, Op::Need::relayed}) {
    for (const Follow follow : {Follow::waits, Follow::leaves}) {
      LossRig rig(kShort);
      const auto op = rig.post({.polls = FakeOp::kNever, .need = need}, follow);
      const Clock::time_point begun = Clock::now();
      rig.engine.lose(rig.domain, kLoss);
      ASSERT_TRUE(follow == Follow::waits ? rig.wait(*op) : ends_by_itself(*op));
      EXPECT_GE(Clock::now() - begun, kShort);
      rig.expect_lost(*op);
    }
  }
}

TEST(EngineLoss, AnOperationThatNeedsNothingOfTheMemberGoesOn) {
  LossRig rig(kShort);
  const auto op = rig.post({.polls = FakeOp::kNever, .need = Op::Need::none});
  rig.engine.lose(rig.domain, kLoss);
  EXPECT_FALSE(rig.engine.wait(*op, Deadline::after(5 * kShort)));
  op->end();
  ASSERT_TRUE(rig.wait(*op));
  EXPECT_EQ(op->code(), StatusCode::ok);
  EXPECT_FALSE(rig.domain.failed());
}

// Operations that were behind catch up: while they do, none is given up.
TEST(EngineLoss, WhileOthersOfTheGroupAdvanceWhatTheyPassOnIsWaitedFor) {
  LossRig rig(kShort);
  const auto last = rig.post({.polls = FakeOp::kNever});
  const auto moving = rig.post({.polls = FakeOp::kNever, .advances = 1});
  rig.engine.lose(rig.domain, kLoss);
  EXPECT_FALSE(rig.engine.wait(*last, Deadline::after(5 * kShort)));
  moving->end();
  last->end();
  ASSERT_TRUE(rig.wait(*last));
  EXPECT_EQ(last->code(), StatusCode::ok);
}

TEST(EngineLoss, AMessageIsNotWaitedForBecauseOthersArrive) {
  LossRig rig(kShort);
  const auto message = rig.post({.polls = FakeOp::kNever, .need = Op::Need::direct});
  rig.post({.polls = FakeOp::kNever, .advances = 1, .need = Op::Need::none});
  rig.engine.lose(rig.domain, kLoss);
  ASSERT_TRUE(rig.wait(*message));
  rig.expect_lost(*message);
}

TEST(EngineLoss, OtherGroupsGoOn) {
  LossRig rig(kShort);
  FailureDomain other("other");
  const auto bystander = make_op({.polls = FakeOp::kNever, .domain = &other});
  rig.engine.post(bystander, Follow::leaves);
  const auto op = rig.post({.polls = FakeOp::kNever});
  rig.engine.lose(rig.domain, kLoss);
  ASSERT_TRUE(rig.wait(*op));
  bystander->end();
  ASSERT_TRUE(rig.wait(*bystander));
  EXPECT_EQ(bystander->code(), StatusCode::ok);
}

// Over a network the transport may report a success that is none, and says so only in its log.
TEST(EngineLoss, AnErrorOrASuccessInDoubtIsDueToTheMember) {
  for (const bool in_doubt : {true, false}) {
    LossRig rig(kLong, kLong);
    rig.engine.lose(rig.domain, kLoss);
    const auto op = rig.post({.transport = in_doubt ? Status() : kCut, .doubt = kCut});
    ASSERT_TRUE(rig.wait(*op));
    EXPECT_EQ(op->finishes(), 0);
    rig.expect_lost(*op);
  }
}

TEST(EngineLoss, ALossEndsTheSleepOfAThreadThatWaits) {
  LossRig rig(kLong);
  const auto op = rig.post({.polls = FakeOp::kNever, .is_announced = true, .need = Op::Need::missing});
  std::thread waiter([&] { EXPECT_TRUE(rig.wait(*op)); });
  while (rig.engine.sleeps() == 0) {
    std::this_thread::yield();
  }
  rig.engine.lose(rig.domain, kLoss);
  waiter.join();
  rig.expect_lost(*op);
}

}  // namespace
}  // namespace torch_ucc
