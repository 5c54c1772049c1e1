#include "ucc/library.h"

#include <gtest/gtest.h>

#include <string>

namespace torch_ucc {
namespace {

TEST(UccLibrary, TellsTheVersionThatWasLoadedWithoutStartingIt) {
  const std::string version = ucc_library_version();
  EXPECT_EQ(version.rfind(std::to_string(UCC_API_MAJOR) + ".", 0), 0U) << version;
}

}  // namespace
}  // namespace torch_ucc
