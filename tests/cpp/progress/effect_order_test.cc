#include "progress/effect_order.h"

#include <gtest/gtest.h>

#include "fakes/rig.h"

namespace torch_ucc {
namespace {

Region bytes(std::uintptr_t begin, std::size_t count) { return {.begin = begin, .item = count}; }
Effects reading(Region region) { return {.reads = {std::move(region)}, .writes = {}}; }
Effects writing(Region region) { return {.reads = {}, .writes = {std::move(region)}}; }

const Region kMemory = bytes(1000, 100);
const Region kPart = bytes(1050, 10);
const Region kElsewhere = bytes(2000, 100);

TEST(Effects, ConflictWhereOneWritesWhatTheOtherReadsOrWrites) {
  EXPECT_TRUE(conflict(writing(kMemory), writing(kPart)));
  EXPECT_TRUE(conflict(writing(kMemory), reading(kPart)));
  EXPECT_TRUE(conflict(reading(kMemory), writing(kPart)));
  EXPECT_FALSE(conflict(reading(kMemory), reading(kPart)));
  EXPECT_FALSE(conflict(writing(kMemory), writing(kElsewhere)));
}

TEST(Effects, AreAddedUp) {
  Effects both = reading(kMemory);
  both.add(writing(kElsewhere));
  EXPECT_TRUE(conflict(both, writing(kPart)));
  EXPECT_TRUE(conflict(both, reading(kElsewhere)));
  EXPECT_FALSE(conflict(both, reading(kMemory)));
}

class EffectOrderTest : public testing::Test {
 protected:
  std::shared_ptr<FakeOp> add(Effects effects, FakeOp::Plan plan = {}, bool is_collective = true) {
    auto op = make_op(std::move(plan));
    order_.add(op, std::move(effects), is_collective);
    return op;
  }
  static std::vector<const Op*> named(const EffectOrder::Earlier& earlier) {
    std::vector<const Op*> ops;
    for (const auto& each : earlier) {
      ops.push_back(each.op.lock().get());
    }
    return ops;
  }
  using Ops = std::vector<const Op*>;

  EffectOrder order_;
};

TEST_F(EffectOrderTest, AnOperationComesAfterThoseInFlightThatItConflictsWith) {
  const auto first = add(writing(kMemory));
  const auto second = add(reading(kPart));
  add(writing(kElsewhere));
  EXPECT_EQ(named(order_.before(writing(kPart))), (Ops{second.get()})) << "which follows the first";
  EXPECT_EQ(named(order_.before(reading(kPart))), (Ops{first.get()}));
  EXPECT_EQ(named(order_.before({})), Ops());
}

TEST_F(EffectOrderTest, AnOperationThatHasEndedIsForgotten) {
  EXPECT_TRUE(order_.empty());
  const auto op = add(writing(kMemory));
  EXPECT_FALSE(order_.empty());
  op->completion().complete(Status());
  EXPECT_EQ(named(order_.before(writing(kMemory))), Ops());
  EXPECT_TRUE(order_.empty());
}

// Only for a call with memory of a device it is asked whether they have come.
TEST_F(EffectOrderTest, AnOperationWhoseEffectsAreStillToComeIsFollowedAlsoOnceItIsGone) {
  const Region on_device{.begin = 1000, .item = 100, .space = 1};
  bool lasts = true;
  int asked = 0;
  {
    auto op = make_op({});
    order_.add(op, writing(on_device), true, [&] { return ++asked != 0 && lasts; });
    op->completion().complete(Status());
    EXPECT_EQ(named(order_.before(reading(on_device))), (Ops{op.get()}));
    EXPECT_EQ(named(order_.collectives()), Ops()) << "it has ended";
  }
  EXPECT_EQ(named(order_.before(reading(on_device))), (Ops{nullptr}));
  EXPECT_EQ(asked, 2);
  lasts = false;
  EXPECT_EQ(named(order_.before(reading(kMemory))), Ops());
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(named(order_.before(reading(on_device))), Ops());
  EXPECT_TRUE(order_.empty());
}

TEST_F(EffectOrderTest, AnOperationThatNobodyHasAnyMoreIsForgottenAndWasNotKept) {
  std::atomic<int> freed{0};
  add(writing(kMemory), {.freed = &freed});
  EXPECT_EQ(freed.load(), 1);
  EXPECT_EQ(named(order_.before(writing(kMemory))), Ops());
  EXPECT_TRUE(order_.empty());
}

// Two ranks that each send a tensor and receive into it would else wait for each other.
TEST_F(EffectOrderTest, WhatIsOnlyStillToBeSentIsSentFromACopy) {
  const auto message = add(reading(kMemory), {.detaches = true});
  EXPECT_EQ(named(order_.before(reading(kMemory))), Ops());
  EXPECT_EQ(message->detached(), 0);
  EXPECT_EQ(named(order_.before(writing(kPart))), Ops());
  EXPECT_EQ(message->detached(), 1);
}

// One that has not begun puts its copy off.
TEST_F(EffectOrderTest, ACopyThatWasPutOffIsWaitedFor) {
  const auto message = add(reading(kMemory), {.detaches = true, .detaches_later = true});
  const EffectOrder::Earlier earlier = order_.before(writing(kPart));
  ASSERT_EQ(named(earlier), (Ops{message.get()}));
  EXPECT_FALSE(earlier.front().over());
  message->detach_now();
  EXPECT_TRUE(earlier.front().over());
  EXPECT_FALSE(message->done());
}

TEST_F(EffectOrderTest, WhatIsWrittenAsWellIsWaitedFor) {
  Effects both = reading(kMemory);
  both.add(writing(kPart));
  const auto op = add(both, {.detaches = true});
  EXPECT_EQ(named(order_.before(writing(kMemory))), (Ops{op.get()}));
  EXPECT_EQ(op->detached(), 0);
}

TEST_F(EffectOrderTest, OfManyOperationsOnTheSameMemoryTheLastIsWaitedFor) {
  add(writing(kMemory));
  add(writing(kMemory));
  const auto last = add(writing(kMemory));
  EXPECT_EQ(named(order_.before(writing(kMemory))), (Ops{last.get()}));
}

// The later one may end before the earlier one has stored its result.
TEST_F(EffectOrderTest, OneThatWaitsForACopyOnlyIsNotEnough) {
  Effects moves = reading(kMemory);
  moves.add(writing(kElsewhere));
  const auto earlier = add(moves, {.detaches = true});
  const auto later = add(writing(kMemory));
  Effects both = reading(kElsewhere);
  both.add(writing(kMemory));
  EXPECT_EQ(named(order_.before(both)), (Ops{earlier.get(), later.get()}));
}

TEST_F(EffectOrderTest, NamesTheCollectivesInFlight) {
  const auto collective = add(writing(kMemory));
  const auto message = add(writing(kElsewhere), {}, false);
  EXPECT_EQ(named(order_.collectives()), (Ops{collective.get()}));
}

}  // namespace
}  // namespace torch_ucc
