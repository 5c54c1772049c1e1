#include "liveness/peer_watch.h"

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <memory>
#include <utility>
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

PeerWatch::Process process(std::uint64_t peer, const Sleeper& sleeper, Ending how = Ending::died) {
  return {peer, sleeper.pid(), [how] { return how; }};
}

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
  const PeerWatch watch({process(7, first), process(8, second)}, nullptr,
                        [&](const Notice& notice) { ended.store(static_cast<int>(notice.peer)); });
  second.kill();
  EXPECT_TRUE(becomes(ended, 8));  // not yet waited for by its parent
}

TEST(PeerWatch, TellsOfAnEndBeforeItBegan) {
  Sleeper sleeper;
  sleeper.kill();
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(sleeper.pid()), &info, WEXITED | WNOWAIT);
  std::atomic<int> calls{0};
  const PeerWatch watch({process(1, sleeper)}, nullptr, [&](const Notice&) { calls.fetch_add(1); });
  EXPECT_TRUE(becomes(calls, 1));
}

TEST(PeerWatch, IsSilentWhileAllLive) {
  const Sleeper sleeper;
  std::atomic<int> calls{0};
  {
    const PeerWatch watch({process(1, sleeper)}, nullptr, [&](const Notice&) { calls.fetch_add(1); });
    ::usleep(20000);
  }
  sleeper.kill();
  EXPECT_EQ(calls.load(), 0);
}

TEST(PeerWatch, NeedsNobodyToWatch) {
  const PeerWatch watch({}, nullptr, [](const Notice&) {});
}

TEST(PeerWatch, DoesNotTellOfWhoLeft) {
  const Sleeper left;
  const Sleeper died;
  std::atomic<int> sum{0};
  const PeerWatch watch({process(1, left, Ending::left), process(2, died)}, nullptr,
                        [&](const Notice& notice) { sum.fetch_add(static_cast<int>(notice.peer)); });
  left.kill();
  ::usleep(20000);
  died.kill();
  EXPECT_TRUE(becomes(sum, 2));
}

// Two watches with a line between them, as on two hosts.
struct Pair {
  explicit Pair(std::vector<PeerWatch::Process> of_first = {}) {
    auto to = std::make_unique<LifeLines>(1, 3, 1);
    auto from = std::make_unique<LifeLines>(0, 3, 0);
    LineAddress address = LineAddress::decode(to->address());
    address.hosts = "127.0.0.1";
    from->connect(1, address);
    second = std::make_unique<PeerWatch>(std::vector<PeerWatch::Process>(), std::move(to), [this](const Notice& notice) {
      how.store(static_cast<int>(notice.how));
      peer.store(static_cast<int>(notice.peer));
      calls.fetch_add(1);
    });
    first = std::make_unique<PeerWatch>(std::move(of_first), std::move(from), [](const Notice&) {});
    for (const Deadline limit = hard_limit(); first->unsettled() != 0 && !limit.passed();) {
      ::usleep(1000);
    }
    EXPECT_EQ(first->unsettled(), 0U);
    EXPECT_TRUE(first->without_line().empty());
  }

  std::atomic<int> peer{-1};
  std::atomic<int> how{0};
  std::atomic<int> calls{0};
  std::unique_ptr<PeerWatch> first;
  std::unique_ptr<PeerWatch> second;
};

TEST(PeerWatch, TellsOverItsLinesWhatItSees) {
  const Sleeper sleeper;
  Pair pair({process(2, sleeper)});
  sleeper.kill();
  EXPECT_TRUE(becomes(pair.peer, 2));
  EXPECT_EQ(pair.how.load(), static_cast<int>(Ending::died));
}

TEST(PeerWatch, SaysHowItGoesItself) {
  Pair pair;
  pair.first.reset();
  EXPECT_TRUE(becomes(pair.peer, 0));
  EXPECT_EQ(pair.how.load(), static_cast<int>(Ending::exited));
}

TEST(PeerWatch, LeavesWithoutANotice) {
  Pair pair;
  pair.first->stop(Ending::left);
  ::usleep(20000);
  EXPECT_EQ(pair.calls.load(), 0);
}

}  // namespace
}  // namespace torch_ucc
