#include "ucx/config.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace torch_ucc {
namespace {

std::string printed(const ucp_config_t* config) {
  char* text = nullptr;
  std::size_t length = 0;
  std::FILE* const stream = ::open_memstream(&text, &length);
  ucp_config_print(config, stream, "", UCS_CONFIG_PRINT_CONFIG);
  std::fclose(stream);
  std::string copy(text, length);
  std::free(text);  // NOLINT: open_memstream allocates so
  return copy;
}

TEST(UcxConfig, OptionsStandOverWhatUcxReads) {
  const UcxConfig config = read_ucx_config({{"NET_DEVICES", "eth7"}, {"TLS", "tcp,self"}});
  const std::string text = printed(config.get());
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
