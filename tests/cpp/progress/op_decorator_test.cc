#include "progress/op_decorator.h"

#include <gtest/gtest.h>

#include "fakes/rig.h"

namespace torch_ucc {
namespace {

constexpr microseconds kPatience{7};

// As the inner operation says, member by member: whoever adds a member to Op adds it here.
TEST(OpDecorator, ForwardsEveryMember) {
  Rig rig;
  FailureDomain domain("group");
  const auto inner = make_op({.name = "inner",
                              .transport = Status(StatusCode::invalid, "transport"),
                              .doubt = Status(StatusCode::transport, "doubt"),
                              .domain = &domain,
                              .is_announced = true,
                              .patience = kPatience,
                              .starts_slowly = true,
                              .waits_for = "a stream",
                              .need = Op::Need::direct,
                              .drained = true,
                              .detaches = true,
                              .detaches_later = true,
                              .finish = [] { return Status(StatusCode::unsupported, "finish"); }});
  OpDecorator op(inner);
  EXPECT_EQ(op.describe(), "inner");
  EXPECT_EQ(op.transport_status().message(), "transport");
  EXPECT_EQ(op.doubt().message(), "doubt");
  EXPECT_EQ(op.finish().message(), "finish");
  EXPECT_EQ(op.patience(), kPatience);
  EXPECT_EQ(op.waits_for(), "a stream");
  EXPECT_EQ(op.need_of({}), Op::Need::direct);
  EXPECT_EQ(op.source(), inner->source());
  EXPECT_EQ(&op.domain(), &domain);
  EXPECT_TRUE(op.is_announced() && op.starts_slowly());
  op.announce();
  EXPECT_EQ(inner->announcements(), 1);
  EXPECT_TRUE(op.detach_inputs());
  EXPECT_FALSE(op.has_detached_inputs());
  op.let_go();
  EXPECT_EQ(inner->let_go_calls(), 1);
  ASSERT_TRUE(rig.engine.with_baton(hard_limit(), [&](LoopToken& token) {
    EXPECT_TRUE(op.start(token).ok());
    EXPECT_EQ(inner->starts(), 1);
    EXPECT_EQ(op.poll(token), Op::State::ended);
    EXPECT_EQ(inner->polls(), 1);
    op.cancel(token);
    EXPECT_EQ(inner->cancels(), 1);
    EXPECT_TRUE(op.is_drained(token));
  }));
  EXPECT_TRUE(op.take_back(Op::After::given_up));
  EXPECT_EQ(inner->taken_back(), 1);
  EXPECT_FALSE(MemoryLease::Use(inner->lease()));
}

TEST(OpDecorator, RecordsWhereTheInnerOperationIsRecorded) {
  trace::FlightRecorder recorder(8);
  const auto inner = make_op({});
  inner->set_recording(recorder.begin({}));
  const OpDecorator op(inner);
  op.record_wait(Clock::now());
  op.record_end(StatusCode::timeout);
  const auto event = inner->recording().event();
  ASSERT_TRUE(event);
  EXPECT_NE(event->awaited_ns, 0);
  EXPECT_EQ(event->result, StatusCode::timeout);
  EXPECT_TRUE(op.recording().event());
}

}  // namespace
}  // namespace torch_ucc
