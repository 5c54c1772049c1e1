#include "base/status.h"

#include <gtest/gtest.h>

namespace torch_ucc {
namespace {

TEST(Status, ByDefaultIsOk) {
  EXPECT_TRUE(Status().ok());
  EXPECT_NO_THROW(throw_if_error(Status()));
}

TEST(Status, IsThrownWithItsCodeAndMessage) {
  try {
    throw_if_error(Status(StatusCode::timeout, "rank 3 is late"));
    FAIL() << "nothing was thrown";
  } catch (const StatusError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::timeout);
    EXPECT_STREQ(error.what(), "rank 3 is late");
  }
}

}  // namespace
}  // namespace torch_ucc
