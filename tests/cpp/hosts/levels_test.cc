#include "hosts/levels.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace torch_ucc::hosts {
namespace {

TEST(Layout, OfHostsWithAsManyRanksHasARowForEachPlace) {
  const Layout layout({"a", "a", "b", "b"});
  EXPECT_EQ(layout.hosts(), 2U);
  EXPECT_EQ(layout.rows(), 2U);
  EXPECT_TRUE(layout.is_useful());
  EXPECT_EQ(layout.on(0), (std::vector<int>{0, 1}));
  EXPECT_EQ(layout.on(1), (std::vector<int>{2, 3}));
  EXPECT_EQ(layout.row(0), (std::vector<int>{0, 2}));
  EXPECT_EQ(layout.row(1), (std::vector<int>{1, 3}));
  EXPECT_EQ(layout.host_of(2), 1U);
  EXPECT_EQ(layout.place_of(3), 1U);
}

TEST(Layout, HasAsManyRowsAsTheSmallestHostHasRanks) {
  const Layout layout({"b", "a", "b", "b", "a"});
  EXPECT_EQ(layout.hosts(), 2U);
  EXPECT_EQ(layout.rows(), 2U);
  EXPECT_EQ(layout.on(0), (std::vector<int>{0, 2, 3})) << "the host of the lowest rank is the first";
  EXPECT_EQ(layout.row(0), (std::vector<int>{0, 1}));
  EXPECT_EQ(layout.row(1), (std::vector<int>{2, 4}));
  EXPECT_EQ(layout.place_of(3), 2U) << "in no row";
}

TEST(Layout, IsOfNoUseOnOneHostAndForSingleRanks) {
  EXPECT_FALSE(Layout({"a", "a", "a"}).is_useful());
  EXPECT_FALSE(Layout({"a", "b", "c"}).is_useful());
  EXPECT_FALSE(Layout({"a"}).is_useful());
  EXPECT_TRUE(Layout({"a", "b", "b"}).is_useful());
}

}  // namespace
}  // namespace torch_ucc::hosts
