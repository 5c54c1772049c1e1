#include "ucx/status.h"

#include <gtest/gtest.h>

#include <string>

namespace torch_ucc {
namespace {

TEST(FromUcx, OnlyOkIsOk) {
  EXPECT_TRUE(from_ucx(UCS_OK, "call").ok());
  for (int code = -200; code < 10; ++code) {
    if (code != UCS_OK) {
      EXPECT_EQ(from_ucx(static_cast<ucs_status_t>(code), "call").code(), StatusCode::transport) << code;
    }
  }
}

TEST(FromUcx, NamesTheCallAndTheCode) {
  const std::string message = from_ucx(UCS_ERR_UNREACHABLE, "ucp_ep_create").message();
  EXPECT_EQ(message, "ucp_ep_create: UCX says '" + std::string(ucs_status_string(UCS_ERR_UNREACHABLE)) + "' (" +
                         std::to_string(UCS_ERR_UNREACHABLE) + ")");
}

}  // namespace
}  // namespace torch_ucc
