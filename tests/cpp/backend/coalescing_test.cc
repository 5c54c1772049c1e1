#include "backend/coalescing.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "progress/failure_domain.h"

namespace torch_ucc {
namespace {

class CoalescingTest : public testing::Test {
 protected:
  ~CoalescingTest() override {
    coalescings::close(1);
    coalescings::close(2);
  }

  Coalescing named(const std::string& name) {
    Coalescing coalescing;
    coalescing.batch = std::make_shared<OpBatch>(domain_, name);
    return coalescing;
  }

  FailureDomain domain_{"group"};
};

TEST_F(CoalescingTest, IsOneForEachGroupOfAThread) {
  EXPECT_EQ(coalescings::find(1), nullptr);
  EXPECT_FALSE(coalescings::close(1));
  coalescings::open(1, named("of group 1"));
  coalescings::open(2, named("of group 2"));
  EXPECT_EQ(coalescings::find(1)->batch->describe(), "of group 1 (0 operations: )");
  EXPECT_EQ(coalescings::close(2)->batch->describe(), "of group 2 (0 operations: )");
  EXPECT_EQ(coalescings::find(2), nullptr);
  EXPECT_NE(coalescings::find(1), nullptr);
}

TEST_F(CoalescingTest, IsNotThatOfAnotherThread) {
  coalescings::open(1, named("of the first thread"));
  std::thread([] { EXPECT_EQ(coalescings::find(1), nullptr); }).join();
}

// A thread that ends leaves nothing to the next one, which may have its id.
TEST_F(CoalescingTest, EndsWithItsThread) {
  std::weak_ptr<OpBatch> batch;
  std::thread([&] {
    Coalescing coalescing = named("of a thread that ends");
    batch = coalescing.batch;
    coalescings::open(1, std::move(coalescing));
    EXPECT_FALSE(batch.expired());
  }).join();
  EXPECT_TRUE(batch.expired());
}

TEST_F(CoalescingTest, OneThatWasNeverEndedIsDroppedByTheNext) {
  coalescings::open(1, named("the first"));
  const std::shared_ptr<OpBatch> first = coalescings::find(1)->batch;
  coalescings::open(1, named("the second"));
  EXPECT_EQ(coalescings::find(1)->batch->describe(), "the second (0 operations: )");
  ASSERT_TRUE(first->completion().done());
  EXPECT_EQ(first->completion().status().code(), StatusCode::closed);
  EXPECT_EQ(first->completion().status().message(),
            "the first (0 operations: ) were dropped, and none of their data was sent: their coalescing was not ended");
}

TEST_F(CoalescingTest, IsDroppedOnce) {
  Coalescing coalescing = named("batch");
  const std::shared_ptr<OpBatch> batch = coalescing.batch;
  coalescing.drop("a call was refused");
  coalescing.drop("and again");
  EXPECT_NE(batch->completion().status().message().find("a call was refused"), std::string::npos);
  EXPECT_EQ(coalescing.batch, nullptr);
}

}  // namespace
}  // namespace torch_ucc
