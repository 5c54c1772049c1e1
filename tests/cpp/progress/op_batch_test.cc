#include "progress/op_batch.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "fakes/rig.h"

namespace torch_ucc {
namespace {

const Status kInvalid(StatusCode::invalid, "no such rank");
const Status kUnsupported(StatusCode::unsupported, "no such algorithm");
const Status kCut(StatusCode::transport, "the wire is cut");

class OpBatchTest : public testing::Test {
 protected:
  OpBatchTest() { rig_.engine.stop_background(); }  // parts are polled when the test says

  std::shared_ptr<FakeOp> add(FakeOp::Plan plan) {
    plan.freed = &freed_;
    auto part = make_op(std::move(plan));
    batch_->add(part);
    parts_.push_back(part.get());
    return part;
  }
  void post() { rig_.engine.post(batch_, Follow::waits); }
  bool ends() { return rig_.engine.wait(*batch_, hard_limit()); }
  bool ends_in_one_round() { return rig_.engine.wait(*batch_, Deadline::after(milliseconds(0))); }
  const Status& status() const { return batch_->completion().status(); }
  void expect_status(StatusCode code, const std::string& message) const {
    EXPECT_EQ(status().code(), code);
    EXPECT_EQ(status().message(), message);
  }
  // After the last holder of batch and parts in the test let go.
  int freed() {
    batch_.reset();
    return freed_.load();
  }

  std::atomic<int> freed_{0};
  FailureDomain domain_{"group"};
  Rig rig_;
  std::shared_ptr<OpBatch> batch_ = std::make_shared<OpBatch>(domain_, "batch");
  std::vector<FakeOp*> parts_;  // kept by the batch
};

// --- all is well

TEST_F(OpBatchTest, StartsItsPartsOnceInTheOrderInWhichTheyWereAdded) {
  std::vector<int> order;
  for (int i = 0; i < 5; ++i) {
    add({.polls = i % 2 == 0 ? 1 : 100, .on_start = [&order, i] { order.push_back(i); }});
  }
  EXPECT_TRUE(order.empty());
  post();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
  ASSERT_TRUE(ends());
  EXPECT_EQ(order.size(), 5U);
  EXPECT_TRUE(status().ok());
}

TEST_F(OpBatchTest, EndsWhenTheLastOfItsPartsHasEnded) {
  for (int i = 0; i < 3; ++i) {
    add({.polls = FakeOp::kNever});
  }
  post();
  for (const std::size_t next : {1U, 2U}) {
    parts_[next]->end();
    EXPECT_FALSE(ends_in_one_round());
    EXPECT_EQ(parts_[next]->finishes(), 0);
  }
  parts_[0]->end();
  ASSERT_TRUE(ends());
  EXPECT_TRUE(status().ok());
}

TEST_F(OpBatchTest, APartThatHasEndedIsNotPolledAgain) {
  add({.polls = 1});
  add({.polls = 100});
  post();
  ASSERT_TRUE(ends());
  EXPECT_EQ(parts_[0]->polls(), 1);
  EXPECT_EQ(parts_[1]->polls(), 100);
}

TEST_F(OpBatchTest, AdvancesWithAnyOfItsParts) {
  add({.polls = 2});
  add({.polls = 6, .advances = 4});
  std::vector<Op::State> states;
  rig_.engine.with_baton(hard_limit(), [&](LoopToken& token) {
    ASSERT_TRUE(batch_->start(token).ok());
    for (int i = 0; i < 6; ++i) {
      states.push_back(batch_->poll(token));
    }
  });
  using enum Op::State;
  EXPECT_EQ(states, (std::vector<Op::State>{in_flight, advanced, in_flight, advanced, in_flight, ended}));
}

TEST_F(OpBatchTest, FinishesAllPartsWhenItIsOver) {
  int finished = 0;
  for (int i = 0; i < 3; ++i) {
    add({.polls = 1 + 10 * i, .finish = [&] {
           EXPECT_EQ(parts_[2]->polls(), 21);
           ++finished;
           return Status();
         }});
  }
  post();
  ASSERT_TRUE(ends());
  EXPECT_EQ(finished, 3);
}

TEST_F(OpBatchTest, OfNothingEndsAtOnce) {
  EXPECT_TRUE(batch_->empty());
  post();
  ASSERT_TRUE(ends());
  EXPECT_TRUE(status().ok());
}

TEST_F(OpBatchTest, IsWhatItsPartsAreTogether) {
  add({.is_announced = true, .patience = microseconds(3)});
  EXPECT_FALSE(batch_->empty());
  EXPECT_TRUE(batch_->is_announced());
  EXPECT_EQ(batch_->patience(), microseconds(3));
  EXPECT_FALSE(batch_->starts_slowly());
  add({.is_announced = false, .patience = microseconds(4), .starts_slowly = true});
  EXPECT_FALSE(batch_->is_announced());
  EXPECT_EQ(batch_->patience(), microseconds(7));
  EXPECT_TRUE(batch_->starts_slowly());
  EXPECT_EQ(&batch_->domain(), &domain_);
  post();
  for (const FakeOp* part : parts_) {
    EXPECT_EQ(part->announcements(), 1);
  }
}

TEST_F(OpBatchTest, WhoWaitsForItWaitsForItsParts) {
  trace::FlightRecorder recorder(4);
  for (int i = 0; i < 2; ++i) {
    add({.polls = 1})->set_recording(recorder.begin({}));
  }
  const Clock::time_point now = Clock::now();
  batch_->record_wait(now);
  for (const trace::FlightRecorder::Record& record : recorder.records()) {
    EXPECT_EQ(record.event.awaited_ns, trace::nanoseconds(now));
  }
}

TEST_F(OpBatchTest, NamesTheFirstOfItsParts) {
  add({.name = "send to rank 1"});
  EXPECT_EQ(batch_->describe(), "batch (1 operations: send to rank 1)");
  add({.name = "recv from rank 2"});
  add({.name = "send to rank 3"});
  EXPECT_EQ(batch_->describe(), "batch (3 operations: send to rank 1, recv from rank 2, send to rank 3)");
  add({.name = "recv from rank 4"});
  EXPECT_EQ(batch_->describe(), "batch (4 operations: send to rank 1, recv from rank 2, send to rank 3, ...)");
}

TEST_F(OpBatchTest, ItsPartsAreNeitherPostedNorCompleted) {
  add({});
  post();
  ASSERT_TRUE(ends());
  EXPECT_FALSE(parts_[0]->posted());
  EXPECT_FALSE(parts_[0]->done());
  EXPECT_EQ(freed(), 1);
}

// --- a part fails

TEST_F(OpBatchTest, ReportsTheFirstErrorOnceAllHaveEnded) {
  add({.name = "a", .polls = 40, .transport = kInvalid});
  add({.name = "b", .polls = 20, .transport = kUnsupported});
  add({.name = "c", .polls = 60});
  post();
  ASSERT_TRUE(ends());
  expect_status(StatusCode::unsupported, "batch (3 operations: a, b, c): b: no such algorithm");
  EXPECT_EQ(parts_[2]->polls(), 60);
  EXPECT_EQ(parts_[2]->finishes(), 0);
  EXPECT_FALSE(domain_.failed());
  EXPECT_EQ(freed(), 3);
}

TEST_F(OpBatchTest, AnErrorOfTheTransportEndsItAtOnceAndHidesOthers) {
  add({.name = "a", .polls = FakeOp::kNever});
  add({.name = "b", .polls = 20, .transport = kInvalid});
  add({.name = "c", .polls = 40, .transport = kCut});
  post();
  ASSERT_TRUE(ends());
  expect_status(StatusCode::transport, "batch (3 operations: a, b, c): c: the wire is cut");
  EXPECT_EQ(parts_[0]->polls(), 40);
  EXPECT_TRUE(domain_.failed());
  EXPECT_FALSE(rig_.engine.failed());
  EXPECT_EQ(freed(), 0);  // the network may still write to what belongs to `a`
}

TEST_F(OpBatchTest, AMismatchEndsItAtOnceAndStays) {
  add({.name = "a", .polls = FakeOp::kNever});
  add({.name = "b", .polls = 20, .transport = Status(StatusCode::mismatch, "another call")});
  add({.name = "c", .polls = 20, .transport = kCut});
  post();
  ASSERT_TRUE(ends());
  expect_status(StatusCode::mismatch, "batch (3 operations: a, b, c): b: another call");
  EXPECT_TRUE(domain_.failed());
}

TEST_F(OpBatchTest, RefusedWithItsFirstPartItEndsAlone) {
  add({.name = "a", .start = kInvalid});
  add({.name = "b"});
  post();
  ASSERT_TRUE(ends());
  expect_status(StatusCode::invalid, "batch (2 operations: a, b): a: no such rank");
  EXPECT_EQ(parts_[1]->starts(), 0);
  EXPECT_EQ(parts_[0]->polls(), 0);
  EXPECT_FALSE(domain_.failed());
  EXPECT_EQ(freed(), 2);
}

TEST_F(OpBatchTest, WhatWasSentBeforeALaterPartWasRefusedCannotBeTakenBack) {
  add({.name = "a", .polls = FakeOp::kNever});
  add({.name = "b", .start = kInvalid});
  add({.name = "c"});
  post();
  ASSERT_TRUE(ends());
  expect_status(StatusCode::transport, "batch (3 operations: a, b, c): b: no such rank");
  EXPECT_EQ(parts_[0]->starts(), 1);
  EXPECT_EQ(parts_[2]->starts(), 0);
  EXPECT_TRUE(domain_.failed());
  EXPECT_FALSE(rig_.engine.failed());
  EXPECT_EQ(freed(), 0);
}

TEST_F(OpBatchTest, AResultThatCannotBeStoredDoesNotKeepTheOthersFromTheirs) {
  add({.name = "a"});
  add({.name = "b", .finish = [] { return kInvalid; }});
  add({.name = "c", .finish = [] { return kUnsupported; }});
  add({.name = "d"});
  post();
  ASSERT_TRUE(ends());
  expect_status(StatusCode::invalid, "b: no such rank");
  for (const FakeOp* part : parts_) {
    EXPECT_EQ(part->finishes(), 1);
  }
  EXPECT_FALSE(domain_.failed());
}

TEST_F(OpBatchTest, NorDoesOneThatThrows) {
  add({.name = "a", .finish = []() -> Status { throw std::runtime_error("no memory"); }});
  add({.name = "b"});
  post();
  ASSERT_TRUE(ends());
  expect_status(StatusCode::internal, "a: its result could not be stored: no memory");
  EXPECT_EQ(parts_[1]->finishes(), 1);
}

TEST_F(OpBatchTest, IsInDoubtWithAnyOfItsParts) {
  add({.name = "a"});
  add({.name = "b", .doubt = Status(StatusCode::transport, "the wire is cut")});
  post();
  ASSERT_TRUE(ends());
  expect_status(StatusCode::transport, "batch (2 operations: a, b): b: the wire is cut");
  EXPECT_EQ(parts_[0]->finishes(), 0);
}

TEST_F(OpBatchTest, PastItsDeadlineItIsKeptWithAllItsParts) {
  add({.name = "a", .polls = 1});
  add({.name = "b", .polls = FakeOp::kNever});
  batch_->set_deadline(Deadline::after(milliseconds(2)));
  post();
  ASSERT_TRUE(ends());
  EXPECT_EQ(status().code(), StatusCode::timeout);
  EXPECT_EQ(status().message().rfind("batch (2 operations: a, b) timed out", 0), 0U) << status().message();
  EXPECT_EQ(freed(), 0);
}

TEST_F(OpBatchTest, PastItsDeadlineItNamesWhatAPartStillWaitedFor) {
  add({.name = "a", .polls = FakeOp::kNever});
  add({.name = "b", .polls = FakeOp::kNever, .waits_for = "a stream"});
  batch_->set_deadline(Deadline::after(milliseconds(2)));
  post();
  ASSERT_TRUE(ends());
  EXPECT_NE(status().message().find("its timeout passed while it still waited for a stream."), std::string::npos)
      << status().message();
}

}  // namespace
}  // namespace torch_ucc
