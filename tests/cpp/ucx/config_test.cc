#include "ucx/config.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "fakes/printed.h"

namespace torch_ucc {
namespace {

TEST(UcxConfig, OptionsStandOverWhatUcxReads) {
  const UcxConfig config = read_ucx_config({{"NET_DEVICES", "eth7"}, {"TLS", "tcp,self"}});
  const std::string text =
      printed([&](std::FILE* stream) { ucp_config_print(config.get(), stream, "", UCS_CONFIG_PRINT_CONFIG); });
  EXPECT_NE(text.find("NET_DEVICES=eth7\n"), std::string::npos) << text;
  EXPECT_NE(text.find("TLS=tcp,self\n"), std::string::npos) << text;
}

TEST(UcxConfig, AnOptionThatUcxDoesNotKnowIsNamed) {
  try {
    read_ucx_config({{"NO_SUCH_OPTION", "1"}});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const StatusError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::transport);
    EXPECT_EQ(error.status().message().rfind("ucp_config_modify NO_SUCH_OPTION: UCX says '", 0), 0U) << error.what();
  }
}

}  // namespace
}  // namespace torch_ucc
