#include "base/unique_handle.h"

#include <gtest/gtest.h>

#include <vector>

namespace torch_ucc {
namespace {

std::vector<int> released;  // by the test that runs
void release(int handle) { released.push_back(handle); }
using Handle = UniqueHandle<int, release>;

class UniqueHandleTest : public testing::Test {
 protected:
  void SetUp() override { released.clear(); }
};

TEST_F(UniqueHandleTest, ReleasesOnce) {
  { const Handle handle(7); }
  EXPECT_EQ(released, std::vector<int>{7});
}

TEST_F(UniqueHandleTest, NullOwnsNothing) {
  {
    Handle handle;
    EXPECT_FALSE(handle);
    handle.reset();
  }
  EXPECT_TRUE(released.empty());
}

TEST_F(UniqueHandleTest, MovesOwnershipAndReleasesWhatItReplaces) {
  {
    Handle from(1);
    Handle to(2);
    to = std::move(from);
    EXPECT_EQ(released, std::vector<int>{2});
    const Handle last(std::move(to));
    EXPECT_EQ(last.get(), 1);
  }
  EXPECT_EQ(released, (std::vector<int>{2, 1}));
}

TEST_F(UniqueHandleTest, SurvivesBeingMovedToItself) {
  {
    Handle handle(3);
    Handle& same = handle;
    handle = std::move(same);
    EXPECT_EQ(handle.get(), 3);
  }
  EXPECT_EQ(released, std::vector<int>{3});
}

TEST_F(UniqueHandleTest, OutReleasesFirstAndTakesWhatIsWritten) {
  {
    Handle handle(4);
    *handle.out() = 5;
    EXPECT_EQ(released, std::vector<int>{4});
  }
  EXPECT_EQ(released, (std::vector<int>{4, 5}));
}

TEST_F(UniqueHandleTest, LeakGivesUpWithoutRelease) {
  {
    Handle handle(6);
    EXPECT_EQ(handle.leak(), 6);
    EXPECT_FALSE(handle);
  }
  EXPECT_TRUE(released.empty());
}

}  // namespace
}  // namespace torch_ucc
