// The engine when operations fail, never end, or are given up. `freed` counts operations whose
// buffers were let go.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "fakes/rig.h"
#include "progress/engine.h"

namespace torch_ucc {
namespace {

const Status kInvalid(StatusCode::invalid, "no such rank");
const Status kCut(StatusCode::transport, "the wire is cut");

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void expect_failed(Rig& rig, StatusCode code, const std::string& reason) {
  ASSERT_TRUE(rig.engine.failed());
  EXPECT_EQ(rig.engine.failure().code(), code);
  EXPECT_TRUE(contains(rig.engine.failure().message(), reason)) << rig.engine.failure().message();
  const auto late = rig.post({.name = "late"});
  ASSERT_TRUE(rig.wait(*late));
  EXPECT_EQ(late->starts(), 0);
  EXPECT_EQ(late->code(), StatusCode::closed);
  EXPECT_TRUE(contains(late->message(), reason)) << late->message();
}

// The group failed for that reason, for good; others did not.
void expect_failed(Rig& rig, FailureDomain& domain, StatusCode code, const std::string& reason) {
  ASSERT_TRUE(domain.failed());
  EXPECT_EQ(domain.failure().code(), code);
  EXPECT_TRUE(contains(domain.failure().message(), reason)) << domain.failure().message();
  rig.engine.stop_background();
  const auto late = rig.post({.name = "late", .domain = &domain});
  ASSERT_TRUE(late->done());
  EXPECT_EQ(late->starts(), 0);
  EXPECT_TRUE(contains(late->message(), reason)) << late->message();
  EXPECT_FALSE(rig.engine.failed());
  EXPECT_TRUE(rig.engine.run(make_op({})).ok());
}

// --- one operation fails, the engine goes on

TEST(EngineFailure, AnOperationThatIsRefusedEndsAlone) {
  Rig rig;
  rig.engine.stop_background();
  std::atomic<int> freed{0};
  auto op = rig.post({.name = "allreduce #7", .start = kInvalid, .freed = &freed});
  ASSERT_TRUE(op->done());
  EXPECT_EQ(op->code(), StatusCode::invalid);
  EXPECT_EQ(op->message(), "allreduce #7: no such rank");
  EXPECT_EQ(op->polls(), 0);
  EXPECT_EQ(op->finishes(), 0);
  op.reset();
  EXPECT_EQ(freed.load(), 1);
  EXPECT_FALSE(rig.engine.failed());
  EXPECT_TRUE(rig.engine.run(make_op({})).ok());
}

TEST(EngineFailure, AnOperationTheLibraryCannotDoEndsAlone) {
  Rig rig;
  rig.engine.stop_background();
  const auto op = rig.post({.transport = Status(StatusCode::unsupported, "no such algorithm")});
  ASSERT_TRUE(op->done());
  EXPECT_EQ(op->code(), StatusCode::unsupported);
  EXPECT_EQ(op->finishes(), 0);
  EXPECT_FALSE(rig.engine.failed());
}

TEST(EngineFailure, AResultThatCannotBeStoredFailsItsOperationAlone) {
  Rig rig;
  rig.engine.stop_background();
  const auto fails = rig.post({.finish = [] { return kInvalid; }});
  const auto throws = rig.post({.name = "allgather #2", .finish = []() -> Status { throw std::runtime_error("out of memory"); }});
  ASSERT_TRUE(fails->done() && throws->done());
  EXPECT_EQ(fails->code(), StatusCode::invalid);
  EXPECT_EQ(throws->code(), StatusCode::internal);
  EXPECT_EQ(throws->message(), "allgather #2 failed while its result was stored: out of memory");
  EXPECT_FALSE(rig.engine.failed());
}

// --- its group fails with it

TEST(EngineFailure, AnOperationPastItsDeadlineFailsItsFailureDomain) {
  FailureDomain domain("group");
  Rig rig;
  const auto bystander = rig.post({.polls = FakeOp::kNever, .domain = &domain});
  const auto op = rig.post(
      {.name = "allreduce #3", .polls = FakeOp::kNever, .domain = &domain, .deadline = Deadline::after(milliseconds(5))});
  ASSERT_TRUE(rig.wait(*op));
  EXPECT_EQ(op->code(), StatusCode::timeout);
  EXPECT_TRUE(contains(op->message(), "allreduce #3 timed out")) << op->message();
  ASSERT_TRUE(rig.wait(*bystander));
  EXPECT_EQ(bystander->code(), StatusCode::closed);
  expect_failed(rig, domain, StatusCode::timeout, "allreduce #3 timed out");
}

TEST(EngineFailure, ADeadlineStrikesWithNobodyWaiting) {
  Rig rig;
  const auto op = rig.post({.polls = FakeOp::kNever, .deadline = Deadline::after(milliseconds(5))}, Follow::leaves);
  ASSERT_TRUE(ends_by_itself(*op));
  EXPECT_EQ(op->code(), StatusCode::timeout);
}

TEST(EngineFailure, AnOperationThatEndedAllTheSameIsNotTimedOut) {
  Rig rig;
  rig.engine.stop_background();
  const auto op = rig.post({.polls = 20, .deadline = Deadline::after(milliseconds(0))});
  ASSERT_FALSE(op->done()) << "the post polled to the end: the test needs more polls";
  ASSERT_TRUE(rig.wait(*op));
  EXPECT_TRUE(op->completion().status().ok());
  EXPECT_FALSE(rig.engine.failed());
}

TEST(EngineFailure, TheEarliestOfManyDeadlinesStrikes) {
  FailureDomain domain("group");
  Rig rig;
  const auto later = rig.post({.polls = FakeOp::kNever, .domain = &domain, .deadline = Deadline::after(std::chrono::hours(1))});
  const auto op =
      rig.post({.polls = FakeOp::kNever, .domain = &domain, .deadline = Deadline::after(milliseconds(5))}, Follow::leaves);
  ASSERT_TRUE(ends_by_itself(*op));
  EXPECT_EQ(op->code(), StatusCode::timeout);
  ASSERT_TRUE(rig.wait(*later));
  EXPECT_EQ(later->code(), StatusCode::closed);
}

TEST(EngineFailure, ADeadlineStrikesThoughTheBatonCannotBeHad) {
  Rig rig;
  const BatonHolder holder(rig.engine);
  const auto op = rig.post({.deadline = Deadline::after(milliseconds(5))});
  ASSERT_TRUE(rig.wait(*op));
  EXPECT_EQ(op->code(), StatusCode::timeout);
}

TEST(EngineFailure, AFailureOfTheTransportAtTheStartFailsItsFailureDomain) {
  FailureDomain domain("group");
  Rig rig;
  rig.engine.stop_background();
  std::atomic<int> freed{0};
  auto op = rig.post({.name = "broadcast #1", .start = kCut, .domain = &domain, .freed = &freed});
  ASSERT_TRUE(op->done());
  EXPECT_EQ(op->code(), StatusCode::transport);
  op.reset();
  EXPECT_EQ(freed.load(), 0);
  expect_failed(rig, domain, StatusCode::transport, "broadcast #1: the wire is cut");
}

TEST(EngineFailure, AFailureOfTheTransportAtTheEndFailsItsFailureDomain) {
  FailureDomain domain("group");
  Rig rig;
  std::atomic<int> freed{0};
  auto op = rig.post({.name = "broadcast #1", .polls = 100, .transport = kCut, .domain = &domain, .freed = &freed});
  ASSERT_TRUE(rig.wait(*op));
  EXPECT_EQ(op->code(), StatusCode::transport);
  EXPECT_EQ(op->finishes(), 0);
  op.reset();
  EXPECT_EQ(freed.load(), 0);
  expect_failed(rig, domain, StatusCode::transport, "broadcast #1: the wire is cut");
}

TEST(EngineFailure, AFailureOfProgressEndsAllThatAreInFlight) {
  Rig rig;
  const auto first = rig.post({.polls = FakeOp::kNever});
  const auto second = rig.post({.polls = FakeOp::kNever}, Follow::leaves);
  rig.transport.cut_wire();
  ASSERT_TRUE(ends_by_itself(*first));
  ASSERT_TRUE(ends_by_itself(*second));
  EXPECT_EQ(first->code(), StatusCode::closed);
  EXPECT_TRUE(contains(second->message(), "the wire is cut")) << second->message();
  expect_failed(rig, StatusCode::transport, "the wire is cut");
}

TEST(EngineFailure, AFailureOfTheEngineIsOneOfEachGroupWithAnOperation) {
  Rig rig;
  rig.engine.stop_background();
  FailureDomain busy("busy");
  FailureDomain idle("idle");
  int told = 0;
  busy.set_listener([&] { ++told; });
  idle.set_listener([&] { ++told; });
  const auto op = rig.post({.name = "first", .polls = 1000, .domain = &busy});
  rig.engine.fail(kCut);
  ASSERT_TRUE(rig.wait(*op));
  rig.engine.stop_background();
  EXPECT_TRUE(busy.failed());
  EXPECT_FALSE(idle.failed());
  EXPECT_EQ(told, 1);
}

TEST(EngineFailure, TheFirstReasonStands) {
  Rig rig;
  rig.engine.fail(Status(StatusCode::closed, "aborted"));
  rig.engine.fail(kCut);
  expect_failed(rig, StatusCode::closed, "aborted");
}

TEST(EngineFailure, FailFromAnotherThreadEndsEveryWait) {
  Rig rig;
  std::atomic<int> freed{0};
  constexpr int kWaiters = 4;
  std::atomic<int> started{0};  // what never started need not be kept
  std::vector<std::thread> waiters;
  for (int i = 0; i < kWaiters; ++i) {
    waiters.emplace_back([&] {
      const auto op = rig.post({.polls = FakeOp::kNever, .on_start = [&] { started.fetch_add(1); }, .freed = &freed});
      EXPECT_TRUE(rig.engine.wait(*op, Deadline()));
      EXPECT_EQ(op->code(), StatusCode::closed);
    });
  }
  while (started.load() < kWaiters) {
    std::this_thread::yield();
  }
  rig.engine.fail(Status(StatusCode::closed, "aborted"));
  for (auto& waiter : waiters) {
    waiter.join();
  }
  EXPECT_EQ(freed.load(), 0);
  EXPECT_EQ(rig.engine.outstanding(), 0U);
}

TEST(EngineFailure, AnOperationIsSettledAsSoonAsTheEngineFailed) {
  Rig rig;
  const BatonHolder nobody_drives(rig.engine);
  const auto op = rig.post({.polls = FakeOp::kNever});
  EXPECT_FALSE(rig.engine.settled(*op));
  rig.engine.fail(Status(StatusCode::closed, "aborted"));
  EXPECT_TRUE(rig.engine.settled(*op));
  EXPECT_EQ(op->code(), StatusCode::closed);
}

TEST(EngineFailure, WhatWasGivenUpIsNeitherPolledNorFinished) {
  Rig rig;
  rig.engine.stop_background();  // which may be within a poll meanwhile
  const auto op = rig.post({.polls = FakeOp::kNever});
  rig.engine.fail(Status(StatusCode::closed, "aborted"));
  ASSERT_TRUE(rig.wait(*op));
  const int polls = op->polls();
  op->end();
  EXPECT_FALSE(rig.engine.run(make_op({})).ok());
  EXPECT_EQ(op->polls(), polls);
  EXPECT_EQ(op->finishes(), 0);
}

TEST(EngineFailure, DrainOfAFailedEngineSaysSo) {
  FailureDomain domain("group");
  Rig rig;
  const auto op = rig.post({.polls = FakeOp::kNever, .domain = &domain});
  rig.engine.fail(kCut);
  EXPECT_FALSE(rig.engine.drain(domain, hard_limit()));
}

TEST(EngineFailure, AnOperationThatWasNotPostedDoesNotCount) {
  FailureDomain domain("group");
  Rig rig;
  const auto op = make_op({.domain = &domain});
  rig.engine.fail(domain, kCut);
  EXPECT_FALSE(rig.engine.settled(*op));
  EXPECT_EQ(rig.engine.outstanding(), 0U);
}

// --- memory of the caller

TEST(EngineFailure, TakesBackTheMemoryOfOperationsThatNobodyWaitsFor) {
  FailureDomain domain("group");
  Rig rig;
  rig.engine.stop_background();
  const auto op = rig.post({.polls = FakeOp::kNever, .domain = &domain}, Follow::leaves);
  rig.engine.fail(domain, kCut);
  EXPECT_TRUE(rig.engine.take_back_all(domain, hard_limit()));
  EXPECT_EQ(op->taken_back(), 1);
}

TEST(EngineFailure, WaitsForAResultThatIsBeingStored) {
  FailureDomain domain("group");
  Rig rig;
  std::atomic<bool> storing{false};
  std::atomic<bool> may_end{false};
  const auto op = make_op({.domain = &domain, .finish = [&] {
                             storing.store(true);
                             storing.notify_all();
                             may_end.wait(false);
                             return Status();
                           }});
  std::thread caller([&] { EXPECT_TRUE(rig.engine.run(op).ok()); });
  storing.wait(false);
  rig.engine.fail(domain, kCut);
  EXPECT_FALSE(rig.engine.take_back_all(domain, Deadline::after(milliseconds(20))));
  may_end.store(true);
  may_end.notify_all();
  EXPECT_TRUE(rig.engine.take_back_all(domain, hard_limit()));
  caller.join();
}

TEST(EngineFailure, TheCallersMemoryIsTakenBackBeforeAFailureIsReported) {
  for (const bool driven : {true, false}) {
    FailureDomain domain("group");
    Rig rig;
    rig.engine.stop_background();
    const auto op = rig.post({.polls = FakeOp::kNever, .domain = &domain, .deadline = Deadline::after(milliseconds(5))});
    int taken_back = 0;
    int let_go = 0;
    op->completion().on_done([&] {
      taken_back = op->taken_back();
      let_go = op->let_go_calls();
    });
    {
      std::optional<BatonHolder> holder;
      if (!driven) {
        holder.emplace(rig.engine);
      }
      ASSERT_TRUE(rig.wait(*op));
    }
    EXPECT_EQ(taken_back, 1);
    EXPECT_EQ(let_go, 0);
    EXPECT_EQ(op->let_go_calls(), 1);
    EXPECT_TRUE(rig.engine.run(make_op({})).ok());
    EXPECT_EQ(op->taken_back(), 1);
    EXPECT_EQ(op->cancels(), 1);
  }
}

// The result is right then, and the group goes on.
TEST(EngineFailure, ADeadlineThatPassesWhileTheResultIsStoredDoesNotStrike) {
  FailureDomain domain("group");
  Rig rig;
  rig.engine.stop_background();
  std::atomic<bool> storing{false};
  std::atomic<bool> stored{false};
  const auto op = make_op({.polls = 1, .domain = &domain, .deadline = Deadline::after(milliseconds(20)), .finish = [&] {
                             storing.store(true);
                             while (!stored.load()) {
                               std::this_thread::yield();
                             }
                             return Status();
                           }});
  std::thread driver([&] { rig.engine.post(op, Follow::waits); });
  while (!storing.load()) {
    std::this_thread::yield();
  }
  std::thread waiter([&] { EXPECT_TRUE(rig.wait(*op)); });
  std::this_thread::sleep_for(milliseconds(40));
  stored.store(true);
  driver.join();
  waiter.join();
  EXPECT_TRUE(op->completion().status().ok());
  EXPECT_FALSE(domain.failed());
}

// The caller was interrupted: its peers still count on the operation.
TEST(EngineFailure, AnOperationThatGoesOnAloneEndsWithoutItsResult) {
  Rig rig;
  rig.engine.stop_background();
  const auto op = rig.post({.name = "allreduce #3", .polls = 50});
  EXPECT_TRUE(op->take_back(Op::After::goes_on));
  ASSERT_TRUE(rig.wait(*op));
  EXPECT_EQ(op->finishes(), 0);
  EXPECT_EQ(op->code(), StatusCode::closed);
  EXPECT_EQ(rig.engine.outstanding(), 0U);
  EXPECT_TRUE(rig.engine.run(make_op({})).ok());
}

// --- what the network may still touch is never freed

TEST(EngineFailure, WhatTheTransportLetsGoOfIsDropped) {
  FailureDomain domain("group");
  std::atomic<int> freed{0};
  Rig rig;
  rig.engine.stop_background();
  rig.post({.polls = FakeOp::kNever, .domain = &domain, .drained = true, .freed = &freed});
  rig.post({.polls = FakeOp::kNever, .domain = &domain, .drained = false, .freed = &freed});
  rig.engine.fail(domain, kInvalid);
  EXPECT_TRUE(rig.engine.run(make_op({})).ok());
  EXPECT_EQ(freed.load(), 1);
}

TEST(EngineFailure, WhatSettledGaveUpOutlivesTheEngine) {
  std::atomic<int> freed{0};
  {
    Rig rig;
    const auto op = rig.post({.polls = FakeOp::kNever, .freed = &freed});
    rig.engine.fail(Status(StatusCode::closed, "aborted"));
    EXPECT_TRUE(rig.engine.settled(*op));
  }
  EXPECT_EQ(freed.load(), 0);
}

TEST(EngineFailure, WhatTimedOutOutlivesTheEngine) {
  std::atomic<int> freed{0};
  {
    Rig rig;
    const auto op = rig.post({.polls = FakeOp::kNever, .deadline = Deadline::after(milliseconds(1)), .freed = &freed});
    EXPECT_TRUE(rig.wait(*op));
  }
  EXPECT_EQ(freed.load(), 0);
}

TEST(EngineFailure, DestroyedWithOperationsInFlightEndsThemAndKeepsTheirBuffers) {
  std::atomic<int> freed{0};
  const auto op = make_op({.name = "allreduce #9", .polls = FakeOp::kNever, .freed = &freed});
  {
    Rig rig;
    rig.engine.post(op, Follow::leaves);
    rig.post({.polls = FakeOp::kNever, .freed = &freed}, Follow::leaves);
  }
  EXPECT_EQ(freed.load(), 0);
  ASSERT_TRUE(op->done());
  EXPECT_EQ(op->code(), StatusCode::closed);
}

TEST(EngineFailure, AFailureDomainFailsAloneAndItsBuffersAreKept) {
  std::atomic<int> freed{0};
  FailureDomain mine("mine");
  FailureDomain other("other");
  {
    Rig rig;
    auto op = rig.post({.name = "allreduce #4", .polls = FakeOp::kNever, .domain = &mine, .freed = &freed});
    const auto foreign = rig.post({.polls = FakeOp::kNever, .domain = &other});
    EXPECT_FALSE(rig.engine.left_behind());
    rig.engine.fail(mine, Status(StatusCode::peer_gone, "rank 1 has died"));
    ASSERT_TRUE(ends_by_itself(*op));
    EXPECT_EQ(op->code(), StatusCode::peer_gone);
    EXPECT_EQ(op->message(), "allreduce #4 was given up because its group had failed: rank 1 has died");
    op.reset();
    EXPECT_TRUE(rig.engine.left_behind());
    EXPECT_FALSE(rig.engine.failed());
    EXPECT_FALSE(rig.engine.drain(mine, hard_limit()));
    foreign->end();
    EXPECT_TRUE(rig.wait(*foreign));
    EXPECT_TRUE(foreign->completion().status().ok());
  }
  EXPECT_EQ(freed.load(), 0);
}

TEST(EngineFailure, WhatIsPostedToAFailedFailureDomainEndsAtOnce) {
  FailureDomain mine("mine");
  Rig rig;
  rig.engine.stop_background();
  rig.engine.fail(mine, Status(StatusCode::closed, "destroyed"));
  const auto op = rig.post({.domain = &mine});
  ASSERT_TRUE(op->done());
  EXPECT_EQ(op->starts(), 0);
  EXPECT_NE(op->message().find("destroyed"), std::string::npos);
  EXPECT_TRUE(rig.engine.run(make_op({})).ok());
}

TEST(EngineFailure, WhatStartsSlowlyEndsOnAFailedFailureDomainAndEngineThoughNobodyDrives) {
  Rig rig;
  FailureDomain domain("failed");
  rig.engine.fail(domain, Status(StatusCode::peer_gone, "rank 1 has died"));
  rig.engine.stop_background();
  EXPECT_TRUE(rig.post({.domain = &domain, .starts_slowly = true}, Follow::leaves)->done());
  const auto waiting = rig.post({.starts_slowly = true}, Follow::leaves);
  EXPECT_FALSE(waiting->done());
  rig.engine.fail(Status(StatusCode::closed, "closed"));
  EXPECT_TRUE(rig.post({.starts_slowly = true}, Follow::leaves)->done());
  EXPECT_TRUE(waiting->done());
  EXPECT_EQ(waiting->starts(), 0);
}

TEST(EngineFailure, ATimeoutFailsItsFailureDomainOnlyAndTellsWhatIsSeenOfTheOthers) {
  FailureDomain mine("mine");
  Rig rig;
  mine.set_observer([] { return std::string("rank 3 is stopped."); });
  const auto op = rig.post({.polls = FakeOp::kNever, .domain = &mine, .deadline = Deadline::after(milliseconds(1))});
  ASSERT_TRUE(rig.wait(*op));
  EXPECT_EQ(op->code(), StatusCode::timeout);
  EXPECT_NE(op->message().find("rank 3 is stopped."), std::string::npos);
  EXPECT_TRUE(mine.failed());
  EXPECT_TRUE(rig.engine.run(make_op({})).ok());
}

// --- callbacks never run under the baton, however an operation ends

class CallbackAfterFailure : public testing::Test {
 protected:
  std::shared_ptr<FakeOp> watched(FakeOp::Plan plan) {
    auto op = make_op(std::move(plan));
    op->completion().on_done([this] { free_.store(baton_is_free(rig_.engine)); });
    return op;
  }
  void TearDown() override { EXPECT_TRUE(free_.load()) << "the callback ran under the baton, or not at all"; }

  Rig rig_;
  std::atomic<bool> free_{false};
};

TEST_F(CallbackAfterFailure, Refused) { EXPECT_FALSE(rig_.engine.run(watched({.start = kInvalid})).ok()); }

TEST_F(CallbackAfterFailure, PostedToAFailedEngine) {
  rig_.engine.fail(kCut);
  EXPECT_FALSE(rig_.engine.run(watched({})).ok());
}

TEST_F(CallbackAfterFailure, TimedOut) {
  const auto op = watched({.polls = FakeOp::kNever, .deadline = Deadline::after(milliseconds(5))});
  rig_.engine.post(op, Follow::leaves);
  ASSERT_TRUE(ends_by_itself(*op));
  rig_.engine.stop_background();  // it ran the callback
}

TEST_F(CallbackAfterFailure, TransportFailed) {
  const auto op = watched({.polls = FakeOp::kNever});
  rig_.engine.post(op, Follow::leaves);
  rig_.transport.cut_wire();
  ASSERT_TRUE(ends_by_itself(*op));
  rig_.engine.stop_background();
}

TEST_F(CallbackAfterFailure, Abandoned) {
  FailureDomain domain("group");
  const auto op = watched({.polls = FakeOp::kNever, .domain = &domain});
  rig_.engine.post(op, Follow::leaves);
  rig_.engine.fail(domain, Status(StatusCode::closed, "destroyed"));
  ASSERT_TRUE(ends_by_itself(*op));
  rig_.engine.stop_background();  // it ran the callback
}

TEST_F(CallbackAfterFailure, MayPostAndWaitForAnotherFailureDomain) {
  FailureDomain domain("group");
  const auto op = watched({.polls = FakeOp::kNever, .domain = &domain});
  bool waited = false;
  op->completion().on_done([&] {
    const auto other = make_op({.polls = 100});
    rig_.engine.post(other, Follow::waits);
    waited = rig_.engine.wait(*other, Deadline::after(std::chrono::seconds(20)));
  });
  rig_.engine.post(op, Follow::leaves);
  rig_.engine.fail(domain, Status(StatusCode::closed, "destroyed"));
  ASSERT_TRUE(ends_by_itself(*op));
  rig_.engine.stop_background();
  EXPECT_TRUE(waited);
}

}  // namespace
}  // namespace torch_ucc
