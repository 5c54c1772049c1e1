#include "progress/suspects.h"

#include <gtest/gtest.h>

#include <string>

#include "fakes/fake_op.h"

namespace torch_ucc {
namespace {

using Verdict = Suspects::Verdict;

constexpr milliseconds kLimit{1000};
const Clock::time_point kThen{std::chrono::hours(100)};
const Clock::time_point kNobodyDied{};
const Status kCut(StatusCode::transport, "the wire is cut");

class SuspectsTest : public testing::Test {
 protected:
  Verdict after(milliseconds wait, bool ended_well, Clock::time_point last_death) const {
    return suspects_.verdict(ended_well, kThen, false, kThen + wait, last_death);
  }

  Suspects suspects_{{.verdict = kLimit}};
};

TEST_F(SuspectsTest, OnlyErrorsOfTheTransportAreAMatterForAVerdict) {
  EXPECT_TRUE(suspects_.concerns(kCut));
  EXPECT_FALSE(suspects_.concerns(Status(StatusCode::invalid, "")));
  EXPECT_FALSE(Suspects({.verdict = milliseconds(0)}).concerns(kCut));
}

TEST_F(SuspectsTest, AGroupThatHasFailedIsReasonEnough) {
  EXPECT_EQ(suspects_.verdict(true, kThen, true, kThen, kNobodyDied), Verdict::group_failed);
}

TEST_F(SuspectsTest, AnErrorIsReportedOnceNobodysEndHasExplainedIt) {
  EXPECT_EQ(after(kLimit - milliseconds(1), false, kNobodyDied), Verdict::waits);
  EXPECT_EQ(after(kLimit, false, kNobodyDied), Verdict::failed);
  EXPECT_EQ(after(kLimit, false, kThen), Verdict::failed);
}

TEST_F(SuspectsTest, ASuccessInDoubtIsBelievedSoonerIfSomebodysEndExplainsIt) {
  EXPECT_EQ(after(Suspects::kBelief - milliseconds(1), true, kThen), Verdict::waits);
  EXPECT_EQ(after(Suspects::kBelief, true, kThen), Verdict::believed);
  EXPECT_EQ(after(Suspects::kBelief, true, kNobodyDied), Verdict::waits);
  EXPECT_EQ(after(kLimit, true, kNobodyDied), Verdict::failed);
}

TEST_F(SuspectsTest, AnEndExplainsForSoLongOnly) {
  const Clock::time_point too_long_ago = kThen - Suspects::kAftermath - kLimit;
  EXPECT_EQ(after(kLimit, true, too_long_ago + kLimit + milliseconds(1)), Verdict::believed);
  EXPECT_EQ(after(kLimit, true, too_long_ago + kLimit), Verdict::failed);
}

TEST_F(SuspectsTest, AnErrorOfNoOperationIsHeldBackAndToldOnce) {
  Status status = kCut;
  ASSERT_TRUE(suspects_.hold_back(status, kThen));
  EXPECT_FALSE(suspects_.empty());
  EXPECT_FALSE(suspects_.take_unexplained(kThen, kNobodyDied));
  const Clock::time_point late = kThen + kLimit;
  const auto told = suspects_.take_unexplained(late, kNobodyDied);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->message(), kCut.message());
  EXPECT_TRUE(suspects_.empty());
  EXPECT_FALSE(suspects_.take_unexplained(late, kNobodyDied));
}

TEST_F(SuspectsTest, AnErrorOfNoOperationThatSomebodysEndExplainsIsDropped) {
  Status status = kCut;
  ASSERT_TRUE(suspects_.hold_back(status, kThen));
  EXPECT_FALSE(suspects_.take_unexplained(kThen + kLimit, kThen));
  EXPECT_TRUE(suspects_.empty());
}

TEST_F(SuspectsTest, WithoutALimitNothingIsHeldBack) {
  Suspects at_once({.verdict = milliseconds(0)});
  Status status = kCut;
  EXPECT_FALSE(at_once.hold_back(status, kThen));
  EXPECT_EQ(status.message(), kCut.message());
}

TEST_F(SuspectsTest, ThoseThatAreDecidedAreForgotten) {
  FailureDomain mine("mine");
  FailureDomain other("other");
  suspects_.add({make_op({.domain = &mine}), kCut, false, kThen});
  suspects_.add({make_op({.domain = &other}), kCut, false, kThen});
  suspects_.settle([&](Suspects::Suspect& each) { return &each.op->domain() == &mine; });
  EXPECT_FALSE(suspects_.has_of(mine));
  EXPECT_TRUE(suspects_.has_of(other));
}

}  // namespace
}  // namespace torch_ucc
