#include "ucc/status.h"

#include <gtest/gtest.h>

#include <string>

namespace torch_ucc {
namespace {

TEST(FromUcc, OnlyOkIsOk) {
  EXPECT_TRUE(from_ucc(UCC_OK, "call").ok());
  for (int code = -200; code < 10; ++code) {
    if (code != UCC_OK) {
      EXPECT_FALSE(from_ucc(static_cast<ucc_status_t>(code), "call").ok()) << code;
    }
  }
}

TEST(FromUcc, WhatTheLibraryCannotDoIsNoFailureOfTheTransport) {
  EXPECT_EQ(from_ucc(UCC_ERR_NOT_SUPPORTED, "call").code(), StatusCode::unsupported);
  EXPECT_EQ(from_ucc(UCC_ERR_NOT_IMPLEMENTED, "call").code(), StatusCode::unsupported);
}

TEST(FromUcc, EveryOtherErrorIsOneOfTheTransport) {
  for (const ucc_status_t status : {UCC_ERR_NO_MESSAGE, UCC_ERR_NO_RESOURCE, UCC_ERR_TIMED_OUT, UCC_ERR_LAST}) {
    EXPECT_EQ(from_ucc(status, "call").code(), StatusCode::transport) << status;
  }
}

TEST(FromUcc, AnOperationInProgressHasNotEnded) {
  EXPECT_EQ(from_ucc(UCC_INPROGRESS, "call").code(), StatusCode::internal);
  EXPECT_EQ(from_ucc(UCC_OPERATION_INITIALIZED, "call").code(), StatusCode::internal);
}

TEST(FromUcc, NamesTheCallAndTheCode) {
  const std::string message = from_ucc(UCC_ERR_NO_MEMORY, "ucc_init").message();
  EXPECT_EQ(message.rfind("ucc_init: UCC says '", 0), 0U) << message;
  EXPECT_NE(message.find("(" + std::to_string(UCC_ERR_NO_MEMORY) + ")"), std::string::npos) << message;
}

}  // namespace
}  // namespace torch_ucc
