#include "liveness/line_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace torch_ucc {
namespace {

// Hosts with so many ranks each, in the order in which launchers number them.
std::vector<std::string> hosts_with(const std::vector<std::size_t>& counts) {
  std::vector<std::string> names;
  for (std::size_t host = 0; host < counts.size(); ++host) {
    names.insert(names.end(), counts[host], "host" + std::to_string(host));
  }
  return names;
}

// Who hears of it when those of one host tell nothing any more: whoever is reached over lines
// between the others.
std::size_t reached(const LinePlan& plan, const std::vector<std::string>& names, const std::string& gone, std::size_t* steps) {
  std::vector<std::set<std::uint64_t>> lines(names.size());
  for (std::uint64_t from = 0; from < names.size(); ++from) {
    for (const std::uint64_t to : plan.from(from)) {
      lines[from].insert(to);
      lines[to].insert(from);
    }
  }
  std::set<std::uint64_t> heard;
  std::vector<std::uint64_t> now;
  for (std::uint64_t each = 0; each < names.size() && now.empty(); ++each) {
    if (names[each] != gone) {
      now.push_back(each);
      heard.insert(each);
    }
  }
  for (*steps = 0; !now.empty(); ++*steps) {
    std::vector<std::uint64_t> next;
    for (const std::uint64_t each : now) {
      for (const std::uint64_t peer : lines[each]) {
        if (names[peer] != gone && heard.insert(peer).second) {
          next.push_back(peer);
        }
      }
    }
    now = next;
  }
  return heard.size();
}

const std::vector<std::vector<std::size_t>> kShapes = {{1, 1},          {2, 2},
                                                       {1, 3},          {8, 1},
                                                       {1, 1, 1},       {4, 4, 4, 4},
                                                       {1, 2, 3, 4, 5}, {8, 8, 8, 8, 8, 8, 8},
                                                       {3, 1, 3, 1},    std::vector<std::size_t>(100, 4)};

TEST(LinePlan, NeedsNoLinesOnOneHost) {
  const LinePlan plan(hosts_with({8}));
  EXPECT_EQ(plan.hosts(), 1U);
  EXPECT_TRUE(plan.from(3).empty());
  EXPECT_EQ(plan.count_to(3), 0U);
}

TEST(LinePlan, EachRankHasALineToAnotherHostAndNoneToItself) {
  for (const auto& shape : kShapes) {
    const auto names = hosts_with(shape);
    const LinePlan plan(names);
    for (std::uint64_t rank = 0; rank < names.size(); ++rank) {
      bool elsewhere = false;
      for (const std::uint64_t peer : plan.from(rank)) {
        EXPECT_NE(peer, rank);
        elsewhere |= names[peer] != names[rank];
      }
      EXPECT_TRUE(elsewhere) << rank;
      EXPECT_LE(plan.from(rank).size(), 3U);
    }
  }
}

TEST(LinePlan, CountsWhoComes) {
  for (const auto& shape : kShapes) {
    const auto names = hosts_with(shape);
    const LinePlan plan(names);
    std::size_t begun = 0;
    std::size_t expected = 0;
    for (std::uint64_t rank = 0; rank < names.size(); ++rank) {
      begun += plan.from(rank).size();
      expected += plan.count_to(rank);
    }
    EXPECT_EQ(begun, expected);
  }
}

TEST(LinePlan, NewsReachesAllOthersWhenAHostIsGone) {
  for (const auto& shape : kShapes) {
    const auto names = hosts_with(shape);
    const LinePlan plan(names);
    for (std::size_t host = 0; host < shape.size(); ++host) {
      std::size_t steps = 0;
      EXPECT_EQ(reached(plan, names, "host" + std::to_string(host), &steps), names.size() - shape[host]);
    }
  }
}

TEST(LinePlan, HasFewLinesAndFewStepsForTenThousandRanks) {
  const auto names = hosts_with(std::vector<std::size_t>(1250, 8));
  const LinePlan plan(names);
  EXPECT_EQ(plan.from(4321).size(), 3U);
  EXPECT_EQ(plan.count_to(4321), 3U);
  std::size_t steps = 0;
  EXPECT_EQ(reached(plan, names, "host700", &steps), names.size() - 8);
  EXPECT_LE(steps, 50U);
}

TEST(LinePlan, KnowsTheHostsItHasLinesWith) {
  const LinePlan plan(hosts_with(std::vector<std::size_t>(9, 2)));
  EXPECT_EQ(plan.neighbours(0), (std::set<std::size_t>{1, 3, 6, 8}));
  EXPECT_EQ(plan.host_of(0), 0U);
  EXPECT_EQ(plan.host_of(17), 8U);
  const LinePlan two(hosts_with({1, 1}));
  EXPECT_EQ(two.neighbours(0), (std::set<std::size_t>{1}));
}

TEST(LinePlan, TakesRanksInAnyOrder) {
  const LinePlan plan({"a", "b", "a", "b"});
  EXPECT_EQ(plan.from(0), (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(plan.from(3), (std::vector<std::uint64_t>{2, 1}));
}

}  // namespace
}  // namespace torch_ucc
