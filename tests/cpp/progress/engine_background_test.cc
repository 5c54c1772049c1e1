// What the background thread drives, and what it leaves to callers.
#include "progress/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

#include "base/core.h"
#include "fakes/rig.h"

namespace torch_ucc {
namespace {

TEST(EngineBackground, DrivesWhatNobodyWaitsFor) {
  Rig rig;
  const auto op = rig.post({.polls = 500}, Follow::leaves);
  EXPECT_TRUE(ends_by_itself(*op));
}

TEST(EngineBackground, TakesOverWhenAWaiterLeaves) {
  Rig rig;
  const auto op = rig.post({.polls = FakeOp::kNever});
  EXPECT_FALSE(rig.engine.wait(*op, Deadline::after(milliseconds(5))));
  op->end();
  EXPECT_TRUE(ends_by_itself(*op));
}

// A waiter whose interrupt check takes long does not stop the others: the background thread drives
// meanwhile.
TEST(EngineBackground, DrivesWhileAWaiterAsksForInterrupts) {
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

TEST(EngineBackground, CanBeCalledForAnOperationNobodyWaitedFor) {
  Rig rig;
  const auto op = rig.post({.polls = 500}, Follow::waits);
  rig.engine.drive_in_background(*op);
  EXPECT_TRUE(ends_by_itself(*op));
  const auto slow = rig.post({.polls = 500, .starts_slowly = true}, Follow::waits);
  rig.engine.drive_in_background(*slow);
  EXPECT_TRUE(ends_by_itself(*slow));
}

TEST(EngineBackground, CanBeCalledAfterItWasCalledInVain) {
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

TEST(EngineBackground, StartsWhatWasPostedWhileTheBatonWasTaken) {
  Rig rig;
  BatonHolder holder(rig.engine);
  const auto op = rig.post({}, Follow::leaves);
  holder.release();
  EXPECT_TRUE(ends_by_itself(*op));
}

TEST(EngineBackground, KeepsAwayFromWhoStartsAnOperation) {
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

TEST(EngineBackground, WhatStartsSlowlyIsNotStartedByWhoLeaves) {
  std::thread::id starter;
  Rig rig;
  const auto op = rig.post({.starts_slowly = true, .on_start = [&] { starter = std::this_thread::get_id(); }}, Follow::leaves);
  ASSERT_TRUE(ends_by_itself(*op));
  EXPECT_NE(starter, std::this_thread::get_id());
}

TEST(EngineBackground, WhatStartsSlowlyIsStartedOnTheCoreOfWhoLeftIt) {
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

TEST(EngineBackground, WhatStartsSlowlyIsStartedByWhoWaits) {
  Rig rig;
  rig.engine.stop_background();
  const auto left = rig.post({.starts_slowly = true}, Follow::leaves);
  EXPECT_EQ(left->starts(), 0);
  EXPECT_TRUE(rig.wait(*left));
  EXPECT_EQ(rig.post({.starts_slowly = true}, Follow::waits)->starts(), 1);
}

TEST(EngineBackground, WhatStartsSlowlyKeepsItsPlace) {
  Rig rig;
  rig.engine.stop_background();
  std::vector<int> started;
  const auto slow = rig.post({.starts_slowly = true, .on_start = [&] { started.push_back(1); }}, Follow::leaves);
  const auto quick = rig.post({.on_start = [&] { started.push_back(2); }}, Follow::leaves);
  EXPECT_TRUE(rig.wait(*quick));
  EXPECT_EQ(started, (std::vector<int>{1, 2}));
}

TEST(EngineBackground, WhatStartsSlowlyIsStartedByWhoSleepsForAnother) {
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

TEST(EngineBackground, CallersDriveAfterTheBackgroundStopped) {
  Rig rig;
  rig.engine.stop_background();
  rig.engine.stop_background();
  EXPECT_EQ(rig.engine.run(make_op({.polls = 100})).code(), StatusCode::ok);
}

}  // namespace
}  // namespace torch_ucc
