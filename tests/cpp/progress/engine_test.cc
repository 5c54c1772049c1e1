// The engine while all is well. When it is not: engine_failure_test.cc. With many threads: engine_threads_test.cc.
#include "progress/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

#include "base/core.h"
#include "fakes/rig.h"

namespace torch_ucc {
namespace {

TEST(Engine, AShortOperationEndsWithinThePost) {
  Rig rig;
  rig.engine.stop_background();  // which may have the baton just then
  const auto op = rig.post({.polls = 3});
  EXPECT_TRUE(op->done());
  EXPECT_EQ(op->starts(), 1);
  EXPECT_EQ(op->announcements(), 1);
  EXPECT_EQ(op->polls(), 3);
  EXPECT_EQ(op->finishes(), 1);
  EXPECT_EQ(rig.engine.outstanding(), 0U);
}

TEST(Engine, PostDoesNotBlockOnALongOne) {
  Rig rig;
  const auto op = rig.post({.polls = FakeOp::kNever});
  EXPECT_FALSE(op->done());
  EXPECT_EQ(rig.engine.outstanding(), 1U);
}

TEST(Engine, CountsItsSleeps) {
  Rig rig;
  rig.engine.stop_background();
  rig.post({.polls = 3});
  EXPECT_EQ(rig.engine.sleeps(), 0U);
  const auto op = rig.post({.polls = FakeOp::kNever});
  while (rig.engine.sleeps() < 2) {  // for ever if it does not
    rig.engine.wait(*op, Deadline::after(milliseconds(20)));
  }
}

TEST(Engine, PostDoesNotWaitForTheBaton) {
  Rig rig;
  BatonHolder holder(rig.engine);
  const auto op = rig.post({});
  EXPECT_EQ(op->starts(), 0);
  holder.release();
  EXPECT_TRUE(rig.wait(*op));
  EXPECT_EQ(op->starts(), 1);
}

TEST(Engine, AnOperationIsPostedFromThePostOnHoweverItGoesOn) {
  Rig rig;
  EXPECT_FALSE(make_op({})->posted());
  EXPECT_TRUE(rig.post({.polls = FakeOp::kNever})->posted());
  EXPECT_TRUE(rig.post({.start = Status(StatusCode::invalid, "no such rank")})->posted());
  const BatonHolder nobody_starts_it(rig.engine);
  const auto waiting = rig.post({});
  EXPECT_EQ(waiting->starts(), 0);
  EXPECT_TRUE(waiting->posted());
}

TEST(Engine, WaitMakesProgress) {
  Rig rig;
  rig.engine.stop_background();
  const auto op = rig.post({.polls = 5000});
  EXPECT_TRUE(rig.wait(*op));
  EXPECT_TRUE(op->completion().status().ok());
  EXPECT_GE(rig.transport.polls(), 5000);
}

TEST(Engine, OperationsEndIndependentlyOfTheOrderTheyWerePostedIn) {
  Rig rig;
  const auto first = rig.post({.polls = FakeOp::kNever});
  const auto second = rig.post({.polls = 1000});
  const auto third = rig.post({.polls = 100});
  EXPECT_TRUE(rig.wait(*third));
  EXPECT_TRUE(rig.wait(*second));
  EXPECT_FALSE(first->done());
  first->end();
  EXPECT_TRUE(rig.wait(*first));
}

TEST(Engine, WaitingForOneEndsTheOthersToo) {
  Rig rig;
  rig.engine.stop_background();
  const auto other = rig.post({.polls = 100});
  const auto mine = rig.post({.polls = 1000});
  EXPECT_TRUE(rig.wait(*mine));
  EXPECT_TRUE(other->done());
}

TEST(Engine, TheDeadlineOfAWaitIsNotThatOfTheOperation) {
  Rig rig;
  const auto op = rig.post({.polls = FakeOp::kNever});
  EXPECT_FALSE(rig.engine.wait(*op, Deadline::after(milliseconds(20))));
  EXPECT_FALSE(rig.engine.wait(*op, Deadline::after(milliseconds(0))));
  EXPECT_FALSE(op->done());
  EXPECT_FALSE(rig.engine.failed());
  op->end();
  EXPECT_TRUE(rig.wait(*op));
  EXPECT_TRUE(op->completion().status().ok());
}

TEST(Engine, WaitForWhatIsDoneSucceedsWhateverTheDeadline) {
  Rig rig;
  const auto op = rig.post({});
  EXPECT_TRUE(rig.engine.wait(*op, Deadline::after(milliseconds(-1))));
  EXPECT_EQ(op->finishes(), 1);
}

TEST(Engine, BackgroundDrivesWhatNobodyWaitsFor) {
  Rig rig;
  const auto op = rig.post({.polls = 500}, Follow::leaves);
  EXPECT_TRUE(ends_by_itself(*op));
}

TEST(Engine, BackgroundTakesOverWhenAWaiterLeaves) {
  Rig rig;
  const auto op = rig.post({.polls = FakeOp::kNever});
  EXPECT_FALSE(rig.engine.wait(*op, Deadline::after(milliseconds(5))));
  op->end();
  EXPECT_TRUE(ends_by_itself(*op));
}

// A waiter whose interrupt check takes long does not stop the others: the background thread drives
// meanwhile.
TEST(Engine, BackgroundDrivesWhileAWaiterAsksForInterrupts) {
  static std::atomic<bool> asked{false};
  static std::atomic<bool> answer{false};
  asked.store(false);
  answer.store(false);
  Rig rig;
  const auto waited = make_op({.polls = FakeOp::kNever});
  std::thread waiter([&] {
    EXPECT_TRUE(rig.engine.post_and_wait(waited, hard_limit(), [] {
      asked.store(true);
      while (!answer.load()) {
        std::this_thread::yield();
      }
    }));
  });
  while (!asked.load()) {
    std::this_thread::yield();
  }
  const auto left = rig.post({.polls = 500}, Follow::leaves);
  EXPECT_TRUE(ends_by_itself(*left));
  answer.store(true);
  waited->end();
  waiter.join();
}

TEST(Engine, BackgroundCanBeCalledForAnOperationNobodyWaitedFor) {
  Rig rig;
  const auto op = rig.post({.polls = 500}, Follow::waits);
  rig.engine.drive_in_background(*op);
  EXPECT_TRUE(ends_by_itself(*op));
  const auto slow = rig.post({.polls = 500, .starts_slowly = true}, Follow::waits);
  rig.engine.drive_in_background(*slow);
  EXPECT_TRUE(ends_by_itself(*slow));
}

TEST(Engine, BackgroundCanBeCalledAfterItWasCalledInVain) {
  for (int round = 0; round < 10; ++round) {
    Rig rig;
    std::this_thread::sleep_for(milliseconds(20));  // until it sleeps; else this shows nothing
    const auto gone = rig.post({.polls = FakeOp::kNever});
    rig.engine.drive_in_background(*gone);
    gone->end();
    EXPECT_TRUE(rig.wait(*gone));
    std::this_thread::sleep_for(milliseconds(5));  // until it has seen that there is nothing
    const auto op = rig.post({.polls = 500});
    rig.engine.drive_in_background(*op);
    ASSERT_TRUE(ends_by_itself(*op)) << "round " << round;
  }
}

TEST(Engine, BackgroundStartsWhatWasPostedWhileTheBatonWasTaken) {
  Rig rig;
  BatonHolder holder(rig.engine);
  const auto op = rig.post({}, Follow::leaves);
  holder.release();
  EXPECT_TRUE(ends_by_itself(*op));
}

TEST(Engine, BackgroundKeepsAwayFromWhoStartsAnOperation) {
  Rig rig;
  std::this_thread::sleep_for(milliseconds(20));  // until it sleeps; else it may come first
  std::shared_ptr<FakeOp> op;
  std::clock_t spent = 0;
  const auto take_long = [&] {
    rig.engine.drive_in_background(*op);
    const Deadline end = Deadline::after(milliseconds(200));
    spent = std::clock();
    while (rig.engine.sleeps() == 0 && !end.passed()) {  // it would spin and yield, then sleep
      std::this_thread::sleep_for(milliseconds(1));
    }
    spent = std::clock() - spent;
    EXPECT_EQ(rig.engine.sleeps(), 0U);
  };
  op = make_op({.polls = 500, .on_start = take_long});
  rig.engine.post(op, Follow::leaves);
  EXPECT_LT(spent, CLOCKS_PER_SEC / 20) << "all threads together, in 0.2 s";
  EXPECT_TRUE(ends_by_itself(*op));
}

TEST(Engine, WhatStartsSlowlyIsNotStartedByWhoLeaves) {
  std::thread::id starter;
  Rig rig;
  const auto op = rig.post({.starts_slowly = true, .on_start = [&] { starter = std::this_thread::get_id(); }}, Follow::leaves);
  ASSERT_TRUE(ends_by_itself(*op));
  EXPECT_NE(starter, std::this_thread::get_id());
}

TEST(Engine, WhatStartsSlowlyIsStartedOnTheCoreOfWhoLeftIt) {
  ParkPolicy policy;
  policy.beside_caller = true;
  FakeTransport transport;
  Engine engine(transport, policy);
  constexpr int kRounds = 40;
  int beside = 0;
  for (int round = 0; round < kRounds; ++round) {
    move_to_core(round % 2);  // where there is a second one; else this shows nothing
    const int here = current_core();
    const auto op = make_op({.starts_slowly = true, .on_start = [&] { beside += current_core() == here ? 1 : 0; }});
    engine.post(op, Follow::leaves);
    ASSERT_TRUE(ends_by_itself(*op));
  }
  EXPECT_GT(beside, kRounds * 3 / 4);
}

TEST(Engine, WhatStartsSlowlyIsStartedByWhoWaits) {
  Rig rig;
  rig.engine.stop_background();
  const auto left = rig.post({.starts_slowly = true}, Follow::leaves);
  EXPECT_EQ(left->starts(), 0);
  EXPECT_TRUE(rig.wait(*left));
  EXPECT_EQ(rig.post({.starts_slowly = true}, Follow::waits)->starts(), 1);
}

TEST(Engine, WhatStartsSlowlyKeepsItsPlace) {
  Rig rig;
  rig.engine.stop_background();
  std::vector<int> started;
  const auto slow = rig.post({.starts_slowly = true, .on_start = [&] { started.push_back(1); }}, Follow::leaves);
  const auto quick = rig.post({.on_start = [&] { started.push_back(2); }}, Follow::leaves);
  EXPECT_TRUE(rig.wait(*quick));
  EXPECT_EQ(started, (std::vector<int>{1, 2}));
}

TEST(Engine, WhatStartsSlowlyIsStartedByWhoSleepsForAnother) {
  constexpr std::chrono::minutes kLong{10};
  FakeTransport transport;
  ParkPolicy policy;
  policy.spin = policy.yield = microseconds(0);
  policy.pause_min = policy.pause_max = policy.pause_max_rung = kLong;
  Engine engine(transport, policy);
  engine.stop_background();
  const auto late = make_op({.polls = FakeOp::kNever});
  engine.post(late, Follow::waits);
  std::thread waits([&] { engine.wait(*late, hard_limit()); });
  while (engine.sleeps() == 0) {  // for ever if it does not
    std::this_thread::yield();
  }
  const auto slow = make_op({.starts_slowly = true});
  engine.post(slow, Follow::leaves);
  EXPECT_TRUE(ends_by_itself(*slow));
  late->end();
  engine.bell().ring();
  waits.join();
}

TEST(Engine, CallersDriveAfterTheBackgroundStopped) {
  Rig rig;
  rig.engine.stop_background();
  rig.engine.stop_background();
  EXPECT_EQ(rig.engine.run(make_op({.polls = 100})).code(), StatusCode::ok);
}

TEST(Engine, RunReturnsHowTheOperationEnded) {
  Rig rig;
  EXPECT_TRUE(rig.engine.run(make_op({.polls = 100})).ok());
  const Status status = rig.engine.run(make_op({.name = "barrier", .start = Status(StatusCode::invalid, "no such rank")}));
  EXPECT_EQ(status.code(), StatusCode::invalid);
  EXPECT_EQ(status.message(), "barrier: no such rank");
}

TEST(Engine, SettledAsksWithoutWaiting) {
  Rig rig;
  const auto op = rig.post({.polls = FakeOp::kNever});
  EXPECT_FALSE(rig.engine.settled(*op));
  op->end();
  EXPECT_TRUE(rig.wait(*op));
  EXPECT_TRUE(rig.engine.settled(*op));
}

TEST(Engine, WithBatonGivesUpAtItsDeadline) {
  Rig rig;
  const BatonHolder holder(rig.engine);
  bool ran = false;
  EXPECT_FALSE(rig.engine.with_baton(Deadline::after(milliseconds(5)), [&ran](LoopToken&) { ran = true; }));
  EXPECT_FALSE(ran);
}

TEST(Engine, DrainEndsWhenItsFailureDomainIsIdle) {
  FailureDomain mine("mine");
  FailureDomain other("other");
  Rig rig;
  rig.engine.stop_background();
  const auto first = rig.post({.polls = 100, .domain = &mine});
  const auto second = rig.post({.polls = 500, .domain = &mine});
  const auto foreign = rig.post({.polls = FakeOp::kNever, .domain = &other});
  EXPECT_TRUE(rig.engine.drain(mine, hard_limit()));
  EXPECT_TRUE(first->done());
  EXPECT_TRUE(second->done());
  EXPECT_FALSE(foreign->done());
}

TEST(Engine, DrainGivesUpAtItsDeadline) {
  FailureDomain mine("mine");
  Rig rig;
  const auto op = rig.post({.polls = FakeOp::kNever, .domain = &mine});
  EXPECT_FALSE(rig.engine.drain(mine, Deadline::after(milliseconds(5))));
  EXPECT_FALSE(op->done());
  EXPECT_FALSE(rig.engine.failed());
}

// What a user may have put behind a completion must never run where it could block all progress.
TEST(Engine, ResultsAndCallbacksAreDeliveredWithoutTheBaton) {
  Rig rig;
  bool free_in_finish = false;
  bool free_in_callback = false;
  const auto op = make_op({.polls = 100, .finish = [&] {
                             free_in_finish = baton_is_free(rig.engine);
                             return Status();
                           }});
  op->completion().on_done([&] { free_in_callback = baton_is_free(rig.engine); });
  rig.engine.post(op, Follow::waits);
  EXPECT_TRUE(rig.wait(*op));
  EXPECT_TRUE(free_in_finish);
  EXPECT_TRUE(free_in_callback);
}

TEST(Engine, ACallbackMayPostAndWaitItself) {
  Rig rig;
  constexpr int kDepth = 20;
  std::vector<std::shared_ptr<FakeOp>> chain;
  std::function<void()> next = [&] {
    const auto op = make_op({.polls = 100});
    chain.push_back(op);
    if (chain.size() < kDepth) {
      op->completion().on_done(next);
    }
    rig.engine.post(op, Follow::waits);
    EXPECT_TRUE(rig.wait(*op));
  };
  next();
  EXPECT_EQ(chain.size(), static_cast<std::size_t>(kDepth));
  EXPECT_EQ(rig.engine.outstanding(), 0U);
}

}  // namespace
}  // namespace torch_ucc
