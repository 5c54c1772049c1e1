#include "base/host.h"

#include <gtest/gtest.h>
#include <sys/utsname.h>

#include <algorithm>

namespace torch_ucc {
namespace {

TEST(Host, HasTheNameThatTheKernelTells) {
  utsname told{};
  ASSERT_EQ(::uname(&told), 0);
  EXPECT_EQ(host_name(), told.nodename);
}

TEST(Host, HasOneBootId) {
  const std::string id = boot_id();
  EXPECT_EQ(id.size(), 36U) << id;
  EXPECT_EQ(std::count(id.begin(), id.end(), '-'), 4) << id;
  EXPECT_EQ(boot_id(), id);
}

}  // namespace
}  // namespace torch_ucc
