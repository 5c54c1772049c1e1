#include "ucc/error_log.h"

#include <gtest/gtest.h>
#include <ucc/api/ucc.h>

namespace torch_ucc {
namespace {

// Makes UCC log an error.
void provoke() {
  ucc_lib_config_h config = nullptr;
  EXPECT_NE(ucc_lib_config_read(nullptr, "a file, which it does not read", &config), UCC_OK);
}

TEST(ErrorLog, HearsWhatIsLoggedWhileACaptureLivesOnly) {
  const std::uint64_t before = ErrorLog::count();
  provoke();
  ErrorLog::listen();
  ErrorLog::listen();  // once is enough
  provoke();
  EXPECT_EQ(ErrorLog::count(), before);
  {
    const ErrorLog::Capture outer;
    const ErrorLog::Capture capture;
    testing::internal::CaptureStdout();
    provoke();
    EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  }
  EXPECT_EQ(ErrorLog::count(), before + 1);
  EXPECT_NE(ErrorLog::first_since(before).find("file"), std::string::npos) << ErrorLog::first_since(before);
  provoke();
  EXPECT_EQ(ErrorLog::count(), before + 1);
}

TEST(ErrorLog, TakesWhatIsAdded) {
  const std::uint64_t before = ErrorLog::count();
  ErrorLog::add("the wire is cut");
  EXPECT_EQ(ErrorLog::count(), before + 1);
  EXPECT_EQ(ErrorLog::first_since(before), "the wire is cut");
  ErrorLog::add("and so all else");
  EXPECT_EQ(ErrorLog::first_since(before), "the wire is cut");
  EXPECT_EQ(ErrorLog::first_since(before + 1), "and so all else");
  EXPECT_EQ(ErrorLog::first_since(before + 2), "");
  for (int i = 0; i < 100; ++i) {
    ErrorLog::add(std::to_string(i));
  }
  EXPECT_EQ(ErrorLog::first_since(before), "68");  // of those that are kept
}

}  // namespace
}  // namespace torch_ucc
