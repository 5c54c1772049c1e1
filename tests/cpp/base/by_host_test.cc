#include "base/by_host.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace torch_ucc {
namespace {

TEST(ByHost, NumbersHostsAndRanksInTheirOrder) {
  const ByHost sorted(std::vector<std::string>{"b", "a", "b", "", "a", "b"});
  EXPECT_EQ(sorted.ranks(), 6U);
  ASSERT_EQ(sorted.hosts(), 3U);
  EXPECT_EQ(sorted.on(0), (std::vector<std::size_t>{0, 2, 5}));
  EXPECT_EQ(sorted.on(1), (std::vector<std::size_t>{1, 4}));
  EXPECT_EQ(sorted.on(2), (std::vector<std::size_t>{3}));
  for (std::size_t host = 0; host < sorted.hosts(); ++host) {
    for (std::size_t index = 0; index < sorted.on(host).size(); ++index) {
      const ByHost::Place place = sorted.place_of(sorted.on(host)[index]);
      EXPECT_EQ(place.host, host);
      EXPECT_EQ(place.index, index);
    }
  }
}

TEST(ByHost, TakesNumbersInsteadOfNames) {
  const ByHost sorted(std::vector<std::size_t>{7, 3, 7});
  EXPECT_EQ(sorted.on(0), (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(sorted.on(1), (std::vector<std::size_t>{1}));
}

TEST(ByHost, OfNobodyHasNoHost) { EXPECT_EQ(ByHost(std::vector<std::string>()).hosts(), 0U); }

}  // namespace
}  // namespace torch_ucc
