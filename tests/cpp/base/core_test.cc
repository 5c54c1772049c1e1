#include "base/core.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstddef>
#include <string>
#include <vector>

namespace torch_ucc {
namespace {

cpu_set_t allowed() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  EXPECT_EQ(::sched_getaffinity(0, sizeof(mask), &mask), 0);
  return mask;
}

std::vector<int> cores_of(const cpu_set_t& mask) {
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mask)) {
      cores.push_back(core);
    }
  }
  return cores;
}

TEST(Core, AThreadIsMovedAndMayStillRunElsewhere) {
  const cpu_set_t before = allowed();
  const std::vector<int> cores = cores_of(before);
  constexpr int kRounds = 100;
  int there = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int core = cores[static_cast<std::size_t>(round) % cores.size()];
    ASSERT_TRUE(move_to_core(core));
    there += current_core() == core ? 1 : 0;
  }
  const cpu_set_t after = allowed();
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
  EXPECT_GT(there, kRounds * 3 / 4);  // the kernel may move it on at once
}

TEST(Core, AThreadIsNotMovedWhereItMayNotRun) {
  const cpu_set_t before = allowed();
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(cores_of(before).front(), &only);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(only), &only), 0);
  const bool moved = move_to_core(cores_of(before).front() + 1);
  const std::string kept = allowed_cores();
  ASSERT_EQ(::sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_FALSE(moved);
  const std::string core = std::to_string(cores_of(before).front());
  EXPECT_EQ(kept, core + "-" + core + ",");
  EXPECT_FALSE(move_to_core(-1));
  EXPECT_FALSE(move_to_core(CPU_SETSIZE));
}

}  // namespace
}  // namespace torch_ucc
