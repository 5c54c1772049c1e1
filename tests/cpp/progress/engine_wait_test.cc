// What a caller who waits does meanwhile, and when it comes back.
// engine_threads_test.cc.
#include "progress/engine.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "fakes/rig.h"

namespace torch_ucc {
namespace {

TEST(EngineWait, CountsItsSleeps) {
  Rig rig;
  rig.engine.stop_background();
  rig.post({.polls = 3});
  EXPECT_EQ(rig.engine.sleeps(), 0U);
  const auto op = rig.post({.polls = FakeOp::kNever});
  while (rig.engine.sleeps() < 2) {  // for ever if it does not
    rig.engine.wait(*op, Deadline::after(milliseconds(20)));
  }
}

TEST(EngineWait, WaitMakesProgress) {
  Rig rig;
  rig.engine.stop_background();
  const auto op = rig.post({.polls = 5000});
  EXPECT_TRUE(rig.wait(*op));
  EXPECT_TRUE(op->completion().status().ok());
  EXPECT_GE(rig.transport.polls(), 5000);
}

TEST(EngineWait, WaitingForOneEndsTheOthersToo) {
  Rig rig;
  rig.engine.stop_background();
  const auto other = rig.post({.polls = 100});
  const auto mine = rig.post({.polls = 1000});
  EXPECT_TRUE(rig.wait(*mine));
  EXPECT_TRUE(other->done());
}

TEST(EngineWait, TheDeadlineOfAWaitIsNotThatOfTheOperation) {
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

TEST(EngineWait, WaitForWhatIsDoneSucceedsWhateverTheDeadline) {
  Rig rig;
  const auto op = rig.post({});
  EXPECT_TRUE(rig.engine.wait(*op, Deadline::after(milliseconds(-1))));
  EXPECT_EQ(op->finishes(), 1);
}

TEST(EngineWait, RunReturnsHowTheOperationEnded) {
  Rig rig;
  EXPECT_TRUE(rig.engine.run(make_op({.polls = 100})).ok());
  const Status status = rig.engine.run(make_op({.name = "barrier", .start = Status(StatusCode::invalid, "no such rank")}));
  EXPECT_EQ(status.code(), StatusCode::invalid);
  EXPECT_EQ(status.message(), "barrier: no such rank");
}

TEST(EngineWait, SettledAsksWithoutWaiting) {
  Rig rig;
  const auto op = rig.post({.polls = FakeOp::kNever});
  EXPECT_FALSE(rig.engine.settled(*op));
  op->end();
  EXPECT_TRUE(rig.wait(*op));
  EXPECT_TRUE(rig.engine.settled(*op));
}

}  // namespace
}  // namespace torch_ucc
