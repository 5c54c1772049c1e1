// The engine while all is well: see also engine_background_test.cc, engine_failure_test.cc and
// engine_threads_test.cc.
#include "progress/engine.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

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
  bool is_last = false;
  EXPECT_TRUE(rig.engine.drain(mine, hard_limit(), [&](LoopToken& token) {
    token.check();
    is_last = true;
  }));
  EXPECT_TRUE(is_last);
  EXPECT_TRUE(first->done());
  EXPECT_TRUE(second->done());
  EXPECT_FALSE(foreign->done());
}

TEST(Engine, DrainGivesUpAtItsDeadline) {
  FailureDomain mine("mine");
  Rig rig;
  const auto op = rig.post({.polls = FakeOp::kNever, .domain = &mine});
  EXPECT_FALSE(rig.engine.drain(mine, Deadline::after(milliseconds(5)), [](LoopToken&) { FAIL(); }));
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
