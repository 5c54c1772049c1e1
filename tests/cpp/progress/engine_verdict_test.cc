// The engine between an error of the transport and the news who is gone.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "fakes/rig.h"
#include "progress/engine.h"

namespace torch_ucc {
namespace {

const Status kCut(StatusCode::transport, "the wire is cut");
const Status kGone(StatusCode::peer_gone, "rank 3 (host b, pid 7) has died");
constexpr milliseconds kLong = kHardLimit;  // a verdict that comes first is not waited for
constexpr milliseconds kShort{20};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct VerdictRig {
  explicit VerdictRig(milliseconds verdict) : engine(transport, {}, Bell(), {.verdict = verdict}) {}

  std::shared_ptr<FakeOp> post(FakeOp::Plan plan) {
    auto op = make_op(std::move(plan));
    engine.post(op, Follow::waits);
    return op;
  }
  bool wait(FakeOp& op) { return engine.wait(op, hard_limit()); }
  void drive() {
    for (int i = 0; i < 10; ++i) {
      EXPECT_TRUE(engine.run(make_op({})).ok());
    }
  }

  FakeTransport transport;
  Engine engine;
};

TEST(EngineVerdict, WhoIsGoneIsTheReasonOfAnErrorThatWasSeenFirst) {
  for (const bool at_start : {true, false}) {
    VerdictRig rig(kLong);
    FailureDomain domain("group");
    const auto op = rig.post({.name = "send #1", .start = at_start ? kCut : Status(), .transport = kCut, .domain = &domain});
    rig.drive();
    EXPECT_FALSE(op->done()) << "told before it is known who is gone";
    rig.engine.fail(domain, kGone);
    ASSERT_TRUE(rig.wait(*op));
    EXPECT_EQ(op->code(), StatusCode::peer_gone);
    EXPECT_TRUE(contains(op->message(), "rank 3 (host b, pid 7) has died")) << op->message();
    EXPECT_FALSE(rig.engine.failed());
  }
}

TEST(EngineVerdict, AnErrorThatNobodysEndExplainsStandsAfterTheVerdict) {
  VerdictRig rig(kShort);
  FailureDomain domain("group");
  const auto op = rig.post({.name = "send #1", .transport = kCut, .domain = &domain});
  ASSERT_TRUE(rig.wait(*op));
  EXPECT_EQ(op->code(), StatusCode::transport);
  EXPECT_TRUE(domain.failed());
  EXPECT_FALSE(rig.engine.failed());
}

TEST(EngineVerdict, ASuccessInDoubtIsNoneIfAMemberIsGone) {
  VerdictRig rig(kLong);
  FailureDomain domain("group");
  const auto op = rig.post({.name = "all_reduce #1", .doubt = kCut, .domain = &domain});
  rig.drive();
  EXPECT_FALSE(op->done());
  rig.engine.fail(domain, kGone);
  ASSERT_TRUE(rig.wait(*op));
  EXPECT_EQ(op->code(), StatusCode::peer_gone);
  EXPECT_EQ(op->finishes(), 0);
}

TEST(EngineVerdict, ASuccessInDoubtIsOneIfSomebodyElseIsGone) {
  VerdictRig rig(kShort);
  FailureDomain other("other group");
  FailureDomain domain("group");
  const auto op = rig.post({.name = "all_reduce #1", .doubt = kCut, .domain = &domain});
  rig.engine.fail(other, kGone);
  ASSERT_TRUE(rig.wait(*op));
  EXPECT_EQ(op->code(), StatusCode::ok);
  EXPECT_EQ(op->finishes(), 1);
  EXPECT_FALSE(domain.failed());
}

TEST(EngineVerdict, ASuccessInDoubtIsNoneIfSomebodyElseIsGoneAndAMemberMayBe) {
  VerdictRig rig(kShort);
  FailureDomain other("other group");
  FailureDomain domain("group");
  rig.engine.miss_deaths();
  const auto op = rig.post({.name = "all_reduce #1", .doubt = kCut, .domain = &domain});
  rig.engine.fail(other, kGone);
  ASSERT_TRUE(rig.wait(*op));
  EXPECT_EQ(op->code(), StatusCode::transport);
  EXPECT_EQ(op->finishes(), 0);
}

TEST(EngineVerdict, ASuccessInDoubtIsKeptAsLongAsTheTransportMayUseIt) {
  for (const bool drained : {false, true}) {
    std::atomic<int> freed{0};
    VerdictRig rig(kShort);
    FailureDomain other("other group");
    auto op = rig.post({.doubt = kCut, .drained = drained, .freed = &freed});
    rig.engine.lose(other, {1, kGone, Loss::kUnknown});
    ASSERT_TRUE(rig.wait(*op));
    EXPECT_EQ(op->code(), StatusCode::ok);
    op.reset();
    rig.drive();
    EXPECT_EQ(freed, drained ? 1 : 0);
    EXPECT_EQ(rig.engine.left_behind(), !drained);
  }
}

TEST(EngineVerdict, ASuccessInDoubtIsNoneIfNobodyIsGone) {
  for (const milliseconds verdict : {milliseconds(0), kShort}) {
    VerdictRig rig(verdict);
    FailureDomain domain("group");
    const auto op = rig.post({.name = "all_reduce #1", .doubt = kCut, .domain = &domain});
    ASSERT_TRUE(rig.wait(*op));
    EXPECT_EQ(op->code(), StatusCode::transport);
    EXPECT_TRUE(contains(op->message(), "all_reduce #1: the wire is cut")) << op->message();
    EXPECT_TRUE(domain.failed());
  }
}

TEST(EngineVerdict, AnErrorOfProgressFailsOnlyTheGroupsOfWhoIsGone) {
  VerdictRig rig(kShort);
  FailureDomain broken("broken");
  FailureDomain whole("whole");
  const auto lost = rig.post({.name = "lost", .polls = FakeOp::kNever, .domain = &broken});
  rig.transport.cut_wire();
  rig.drive();
  rig.engine.fail(broken, kGone);
  ASSERT_TRUE(rig.wait(*lost));
  EXPECT_EQ(lost->code(), StatusCode::peer_gone);
  std::this_thread::sleep_for(3 * kShort);
  const auto op = rig.post({.domain = &whole});
  ASSERT_TRUE(rig.wait(*op));
  EXPECT_EQ(op->code(), StatusCode::ok);
  EXPECT_FALSE(rig.engine.failed());
}

TEST(EngineVerdict, AnErrorOfProgressThatNobodysEndExplainsFailsAll) {
  VerdictRig rig(kShort);
  const auto op = rig.post({.name = "lost", .polls = FakeOp::kNever});
  rig.transport.cut_wire();
  ASSERT_TRUE(rig.wait(*op));
  EXPECT_TRUE(rig.engine.failed());
  EXPECT_TRUE(contains(rig.engine.failure().message(), "the wire is cut")) << rig.engine.failure().message();
}

TEST(EngineVerdict, WhatIsInDoubtIsNotDrained) {
  VerdictRig rig(kLong);
  FailureDomain domain("group");
  const auto op = rig.post({.doubt = kCut, .domain = &domain});
  EXPECT_FALSE(rig.engine.drain(domain, Deadline::after(milliseconds(5))));
  rig.engine.fail(domain, kGone);
  EXPECT_TRUE(rig.wait(*op));
}

TEST(EngineVerdict, WhatIsInDoubtWhenTheEngineGoesIsGivenUp) {
  std::shared_ptr<FakeOp> op;
  {
    VerdictRig rig(kLong);
    op = rig.post({.doubt = kCut});
  }
  ASSERT_TRUE(op->done());
  EXPECT_EQ(op->code(), StatusCode::closed);
}

}  // namespace
}  // namespace torch_ucc
