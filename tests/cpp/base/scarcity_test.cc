#include "base/scarcity.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace torch_ucc {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30U;

TEST(Scarcity, IsSilentWhereThereIsEnough) {
  EXPECT_EQ(scarcity_of(100, 1024, kGiB, 4 * kGiB), "");
  EXPECT_EQ(scarcity_of(100000, 0, 0, 0), "");  // nothing is known
}

TEST(Scarcity, NamesWhatIsShortAndWhatToDo) {
  EXPECT_EQ(scarcity_of(1020, 1024, kGiB, 4 * kGiB),
            " This process has 1020 of 1024 file descriptors open, and a group may need 32: raise the limit (ulimit -n).");
  const std::string both = scarcity_of(1024, 1024, 1 << 20, std::size_t{64} << 20U);
  EXPECT_NE(both.find("ulimit -n"), std::string::npos);
  EXPECT_NE(both.find("/dev/shm has 1 of 64 MiB free"), std::string::npos) << both;
}

TEST(Scarcity, CountsTheDescriptorsOfThisProcess) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = 8;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const std::string text = scarcity();
  const bool has_enough = has_descriptors_to_start();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(has_descriptors_to_start());
  EXPECT_NE(text.find(" of 8 file descriptors open, and"), std::string::npos) << text;
  EXPECT_FALSE(has_enough);
}

}  // namespace
}  // namespace torch_ucc
