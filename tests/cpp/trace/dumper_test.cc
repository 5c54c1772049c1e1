#include "trace/dumper.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <string>

#include "base/status.h"
#include "fakes/limits.h"

namespace torch_ucc::trace {
namespace {

class DumperTest : public testing::Test {
 protected:
  DumperTest() { recorder_.add_group({"world", 0, {5}, false, "", {}}); }
  ~DumperTest() override { std::filesystem::remove_all(folder_); }

  std::string written(const std::filesystem::path& path) const {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  FlightRecorder recorder_{4};
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("dumper_test-" + std::to_string(::getpid())) / "made by it";
};

TEST_F(DumperTest, WritesAFileOfTheRankWhenAsked) {
  Dumper dumper(recorder_, folder_);
  dumper.request("timeout");
  ASSERT_TRUE(dumper.flush(hard_limit()));
  EXPECT_NE(written(folder_ / "rank5.json").find(R"("reason":"timeout","rank":5,)"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "rank5.json.partial"));
}

TEST_F(DumperTest, ALaterFileReplacesTheFirst) {
  Dumper dumper(recorder_, folder_);
  dumper.request("timeout");
  ASSERT_TRUE(dumper.flush(hard_limit()));
  dumper.request("abort");
  ASSERT_TRUE(dumper.flush(hard_limit()));
  EXPECT_NE(written(folder_ / "rank5.json").find(R"("reason":"abort")"), std::string::npos);
}

TEST_F(DumperTest, FollowsNoLinkThatLiesInItsPlace) {
  Dumper dumper(recorder_, folder_);
  const std::filesystem::path other = folder_ / "somebody's";
  std::ofstream(other) << "theirs";
  for (const char* name : {"rank5.json.partial", "rank5.json"}) {
    std::filesystem::create_symlink(other, folder_ / name);
  }
  dumper.request("timeout");
  ASSERT_TRUE(dumper.flush(hard_limit()));
  EXPECT_EQ(written(other), "theirs");
  EXPECT_FALSE(std::filesystem::is_symlink(folder_ / "rank5.json"));
  EXPECT_NE(written(folder_ / "rank5.json").find(R"("reason":"timeout")"), std::string::npos);
}

TEST_F(DumperTest, IsFlushedAtOnceIfNothingWasAsked) {
  Dumper dumper(recorder_, folder_);
  EXPECT_TRUE(dumper.flush(hard_limit()));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "rank5.json"));
}

TEST_F(DumperTest, RefusesAPlaceThatIsNoDirectory) { EXPECT_THROW(Dumper(recorder_, "/dev/null/here"), StatusError); }

// Of the whole process: one test for all of it.
TEST_F(DumperTest, TheProcessesOwnIsAskedBySignalAndLetsTheEarlierHandlerHearOfIt) {
  request_dump("nobody is there");
  flush_dump(hard_limit());
  static volatile std::sig_atomic_t heard = 0;
  std::signal(SIGUSR2, [](int) { heard = 1; });
  recorder().add_group({"world", 0, {3}, false, "", {}});
  start_dumper(folder_);
  dump_at_signal();
  ::raise(SIGUSR2);
  flush_dump(hard_limit());
  EXPECT_EQ(heard, 1);
  EXPECT_NE(written(folder_ / "rank3.json").find(R"("reason":"signal")"), std::string::npos);
}

}  // namespace
}  // namespace torch_ucc::trace
