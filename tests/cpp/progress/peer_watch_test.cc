#include "progress/peer_watch.h"

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <vector>

#include "fakes/limits.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): unistd.h has it with _GNU_SOURCE only

namespace torch_ucc {
namespace {

// A process that lives until it is killed.
class Sleeper {
 public:
  Sleeper() {
    std::array<const char*, 3> arguments{"sleep", "600", nullptr};
    EXPECT_EQ(::posix_spawnp(&pid_, "sleep", nullptr, nullptr, const_cast<char**>(arguments.data()), environ), 0);
  }
  ~Sleeper() {
    kill();
    ::waitpid(pid_, nullptr, 0);
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  void kill() const { ::kill(pid_, SIGKILL); }
  int pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

bool becomes(const std::atomic<int>& value, int wanted) {
  for (const Deadline limit = hard_limit(); value.load() != wanted && !limit.passed();) {
    ::usleep(1000);
  }
  return value.load() == wanted;
}

TEST(PeerWatch, TellsWhoEnded) {
  const Sleeper first;
  const Sleeper second;
  std::atomic<int> ended{-1};
  const PeerWatch watch({{7, first.pid()}, {8, second.pid()}}, [&](std::uint64_t peer) {
    ended.store(static_cast<int>(peer));
    return milliseconds(0);
  });
  second.kill();
  EXPECT_TRUE(becomes(ended, 8));  // not yet waited for by its parent
}

TEST(PeerWatch, TellsOfAnEndBeforeItBegan) {
  Sleeper sleeper;
  sleeper.kill();
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(sleeper.pid()), &info, WEXITED | WNOWAIT);
  std::atomic<int> calls{0};
  const PeerWatch watch({{1, sleeper.pid()}}, [&](std::uint64_t) {
    calls.fetch_add(1);
    return milliseconds(0);
  });
  EXPECT_TRUE(becomes(calls, 1));
}

TEST(PeerWatch, AsksAgainAfterThePauseItIsTold) {
  const Sleeper sleeper;
  std::atomic<int> calls{0};
  const PeerWatch watch({{1, sleeper.pid()}}, [&](std::uint64_t) { return milliseconds(calls.fetch_add(1) < 2 ? 5 : 0); });
  sleeper.kill();
  EXPECT_TRUE(becomes(calls, 3));
  ::usleep(30000);
  EXPECT_EQ(calls.load(), 3);
}

TEST(PeerWatch, IsSilentWhileAllLive) {
  const Sleeper sleeper;
  std::atomic<int> calls{0};
  {
    const PeerWatch watch({{1, sleeper.pid()}}, [&](std::uint64_t) {
      calls.fetch_add(1);
      return milliseconds(0);
    });
    ::usleep(20000);
  }
  sleeper.kill();
  EXPECT_EQ(calls.load(), 0);
}

TEST(PeerWatch, NeedsNobodyToWatch) {
  const PeerWatch watch({}, [](std::uint64_t) { return milliseconds(0); });
}

}  // namespace
}  // namespace torch_ucc
