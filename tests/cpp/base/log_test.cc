#include "base/log.h"

#include <gtest/gtest.h>

namespace torch_ucc {
namespace {

TEST(Log, WarningIsOneLineOnStderrThatSaysWhoSpeaks) {
  testing::internal::CaptureStderr();
  log_warning("100 % of rank 3 is late");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[torch_ucc] 100 % of rank 3 is late\n");
}

}  // namespace
}  // namespace torch_ucc
