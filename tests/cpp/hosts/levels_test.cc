#include "hosts/levels.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace torch_ucc::hosts {
namespace {

Layout layout_of(const std::vector<std::string>& hosts) { return Layout(ByHost(hosts)); }

TEST(Layout, OfHostsWithAsManyRanksHasARowForEachPlace) {
  const Layout layout = layout_of({"a", "a", "b", "b"});
  EXPECT_EQ(layout.hosts(), 2U);
  EXPECT_EQ(layout.rows(), 2U);
  EXPECT_TRUE(layout.is_useful());
  EXPECT_EQ(layout.on(0), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(layout.on(1), (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(layout.row(0), (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(layout.row(1), (std::vector<std::size_t>{1, 3}));
  EXPECT_EQ(layout.host_of(2), 1U);
  EXPECT_EQ(layout.place_of(3), 1U);
}

TEST(Layout, HasAsManyRowsAsTheSmallestHostHasRanks) {
  const Layout layout = layout_of({"b", "a", "b", "b", "a"});
  EXPECT_EQ(layout.hosts(), 2U);
  EXPECT_EQ(layout.rows(), 2U);
  EXPECT_EQ(layout.on(0), (std::vector<std::size_t>{0, 2, 3})) << "the host of the lowest rank is the first";
  EXPECT_EQ(layout.row(0), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(layout.row(1), (std::vector<std::size_t>{2, 4}));
  EXPECT_EQ(layout.place_of(3), 2U) << "in no row";
}

TEST(Layout, IsOfNoUseOnOneHostAndForSingleRanks) {
  EXPECT_FALSE(layout_of({"a", "a", "a"}).is_useful());
  EXPECT_FALSE(layout_of({"a", "b", "c"}).is_useful());
  EXPECT_FALSE(layout_of({"a"}).is_useful());
  EXPECT_TRUE(layout_of({"a", "b", "b"}).is_useful());
}

}  // namespace
}  // namespace torch_ucc::hosts
