#include "ucc/context_config.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/status.h"

namespace torch_ucc {
namespace {

std::string printed(ucc_context_config_h config) {
  char* text = nullptr;
  std::size_t length = 0;
  std::FILE* const stream = ::open_memstream(&text, &length);
  ucc_context_config_print(config, stream, "", UCC_CONFIG_PRINT_CONFIG);
  std::fclose(stream);
  std::string copy(text, length);
  std::free(text);  // NOLINT: open_memstream allocates so
  return copy;
}

TEST(UccContextConfig, OptionsOfTheContextAndOfItsComponents) {
  const UccContextConfig config =
      read_ucc_context_config({{"ESTIMATED_NUM_PPN", "7"}, {"CL_BASIC_TUNE", "allreduce:0-4k:5"}, {"TL_UCP_NPOLLS", "3"}});
  const std::string text = printed(config.get());
  EXPECT_NE(text.find("UCC_ESTIMATED_NUM_PPN=7\n"), std::string::npos) << text;
  EXPECT_NE(text.find("UCC_CL_BASIC_TUNE=allreduce:0-4k:5\n"), std::string::npos) << text;  // UCC prints none of tl/ucp
}

class UccContextConfigRefusal : public testing::TestWithParam<const char*> {};

TEST_P(UccContextConfigRefusal, WhatIsNoOptionOfAContextIsNamed) {
  try {
    read_ucc_context_config({{GetParam(), "1"}});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const StatusError& error) {
    EXPECT_EQ(error.status().message().rfind(std::string("ucc_context_config_modify ") + GetParam() + ": UCC says '", 0), 0U)
        << error.what();
  }
}

// One that nobody knows, two of the library, one of a component that is not there, and no name at all.
INSTANTIATE_TEST_SUITE_P(All, UccContextConfigRefusal,
                         testing::Values("NO_SUCH_OPTION", "CLS", "TL_UCP_ALLREDUCE_KN_RADIX", "TL_NOWHERE_TUNE", "TL_UCP"));

}  // namespace
}  // namespace torch_ucc
