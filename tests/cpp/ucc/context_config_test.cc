#include "ucc/context_config.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "base/status.h"
#include "fakes/printed.h"

namespace torch_ucc {
namespace {

TEST(UccContextConfig, OptionsOfTheContextAndOfItsComponents) {
  const UccContextConfig config =
      read_ucc_context_config({{"ESTIMATED_NUM_PPN", "7"}, {"CL_BASIC_TUNE", "allreduce:0-4k:5"}, {"TL_UCP_NPOLLS", "3"}});
  const std::string text =
      printed([&](std::FILE* stream) { ucc_context_config_print(config.get(), stream, "", UCC_CONFIG_PRINT_CONFIG); });
  EXPECT_NE(text.find("UCC_ESTIMATED_NUM_PPN=7\n"), std::string::npos) << text;
  // UCC prints none of tl/ucp
  EXPECT_NE(text.find("UCC_CL_BASIC_TUNE=allreduce:0-4k:5\n"), std::string::npos) << text;
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

// One that nobody knows, two of the library, one of a component that is not there, and no name at
// all.
INSTANTIATE_TEST_SUITE_P(All, UccContextConfigRefusal,
                         testing::Values("NO_SUCH_OPTION", "CLS", "TL_UCP_ALLREDUCE_KN_RADIX", "TL_NOWHERE_TUNE", "TL_UCP"));

TEST(TlsWithoutReads, LeavesThemOutHoweverTheTransportsAreNamed) {
  EXPECT_EQ(tls_without_reads(""), "^cma,knem");
  EXPECT_EQ(tls_without_reads("all"), "^cma,knem");
  EXPECT_EQ(tls_without_reads("cma"), "^cma,knem");
  EXPECT_EQ(tls_without_reads("^tcp"), "^tcp,cma,knem");
  EXPECT_EQ(tls_without_reads("^cma,tcp"), "^tcp,cma,knem");
  EXPECT_EQ(tls_without_reads("posix,cma,knem,self"), "posix,self");
  EXPECT_EQ(tls_without_reads("sm,self,tcp"), "mm,self,tcp");
}

TEST(TlsWithoutReads, OfSeveralValuesTheLastCounts) {
  const NamedValues told = without_reads({{"TLS", "tcp"}, {"NET_DEVICES", "lo"}, {"TLS", "all"}});
  EXPECT_EQ(told, (NamedValues{{"TLS", "tcp"}, {"NET_DEVICES", "lo"}, {"TLS", "^cma,knem"}}));
}

}  // namespace
}  // namespace torch_ucc
