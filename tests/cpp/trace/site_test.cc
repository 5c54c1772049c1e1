#include "trace/site.h"

#include <gtest/gtest.h>

namespace torch_ucc::trace {
namespace {

TEST(Site, IsNoneUntilSomebodyKnowsHowToFindIt) {
  EXPECT_EQ(site_of_caller(), 0U);
  site_capture.store([]() -> std::uint32_t { return 7; });
  EXPECT_EQ(site_of_caller(), 7U);
  site_capture.store(nullptr);
  EXPECT_EQ(site_of_caller(), 0U);
}

}  // namespace
}  // namespace torch_ucc::trace
