#include "progress/bell.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>

#include "fakes/limits.h"

namespace torch_ucc {
namespace {

// Sleeps until rung, however often the system wakes it for nothing.
bool sleep_until_rung(const Bell& bell) {
  Bell::Sleep sleep(bell);
  const Deadline limit = hard_limit();
  while (!sleep.wait(milliseconds(100))) {
    if (limit.passed()) {
      return false;
    }
  }
  return true;
}

TEST(Bell, ASleepEndsByItselfIfNobodyRings) {
  const Bell bell;
  Bell::Sleep sleep(bell);
  const Clock::time_point start = Clock::now();
  while (Clock::now() - start < milliseconds(5)) {
    EXPECT_FALSE(sleep.wait(milliseconds(5)));
  }
}

TEST(Bell, ASleepOfNoTimeReturnsAtOnce) {
  const Bell bell;
  Bell::Sleep sleep(bell);
  EXPECT_FALSE(sleep.wait(Clock::duration::zero()));
  EXPECT_FALSE(sleep.wait(milliseconds(-5)));
}

TEST(Bell, ARingAfterTheAnnouncementIsNotLost) {
  const Bell bell;
  Bell::Sleep sleep(bell);
  bell.ring();
  EXPECT_TRUE(sleep.wait(kHardLimit));
}

TEST(Bell, ARingBeforeTheAnnouncementIsNotHeard) {
  const Bell bell;
  bell.ring();
  Bell::Sleep sleep(bell);
  EXPECT_FALSE(sleep.wait(milliseconds(1)));
}

TEST(Bell, WakesEveryThreadThatSleeps) {
  const Bell bell;
  std::atomic<int> woken{0};
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 3; ++i) {
    sleepers.emplace_back([&] {
      EXPECT_TRUE(sleep_until_rung(bell));
      woken.fetch_add(1);
    });
  }
  while (woken.load() < 3) {  // who was not asleep yet did not hear it
    bell.ring();
    std::this_thread::yield();
  }
  for (auto& sleeper : sleepers) {
    sleeper.join();
  }
}

TEST(Bell, SeveralAreRungAtOnce) {
  const Bell one;
  const Bell other;
  Bell::Sleep near(one);
  Bell::Sleep far(other);
  Bell::ring({&one, &other});
  EXPECT_TRUE(near.wait(std::chrono::seconds(60)));
  EXPECT_TRUE(far.wait(std::chrono::seconds(60)));
}

TEST(Bell, IsFoundByItsAddress) {
  const Bell bell;
  const auto same = Bell::of_peer(bell.address());
  ASSERT_TRUE(same);
  Bell::Sleep sleep(bell);
  same->ring();
  EXPECT_TRUE(sleep.wait(kHardLimit));
}

TEST(Bell, MovesWithItsAddress) {
  Bell first;
  const std::string address = first.address();
  const Bell second(std::move(first));
  EXPECT_EQ(second.address(), address);
  EXPECT_TRUE(Bell::of_peer(address));
}

TEST(Bell, IsNotFoundOnceItsOwnerIsGone) {
  std::string address;
  {
    const Bell bell;
    address = bell.address();
  }
  EXPECT_FALSE(Bell::of_peer(address));
}

TEST(Bell, AnotherOneInItsPlaceIsNotTakenForIt) {
  std::string address;
  {
    const Bell bell;
    address = bell.address();
  }
  const Bell other;  // gets the same file number
  EXPECT_NE(other.address(), address);
  EXPECT_FALSE(Bell::of_peer(address));
}

TEST(Bell, RefusesAddressesThatAreNone) {
  const Bell bell;
  const std::string good = bell.address();
  for (const std::string& address : {std::string(), std::string("nonsense"), std::string("1:2:3"), "9" + good, good.substr(0, 5),
                                     std::string("-1:-1:-1:-1"), good.substr(0, good.find(':')) + ":1:0:7"}) {
    EXPECT_FALSE(Bell::of_peer(address)) << address;
  }
}

TEST(Bell, PeersReadWhatItsProcessSaysOfItself) {
  const Bell bell;
  const auto seen = Bell::of_peer(bell.address());
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->presence(), Bell::Presence::here);
  EXPECT_EQ(seen->activity().group, 0);
  bell.set_presence(Bell::Presence::leaving);
  const Clock::time_point now = Clock::now();
  bell.set_activity({32767, 21, 4000000000U, now});
  EXPECT_EQ(seen->presence(), Bell::Presence::leaving);
  const Bell::Activity activity = seen->activity();
  EXPECT_EQ(activity.group, 32767);
  EXPECT_EQ(activity.operation, 21);
  EXPECT_EQ(activity.seq, 4000000000U);
  EXPECT_EQ(activity.since, now);
}

TEST(Bell, WakesAnotherProcess) {
  const Bell bell;
  const std::string address = bell.address();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::_exit(sleep_until_rung(bell) ? 0 : 1);
  }
  int status = 0;
  pid_t ended = 0;
  const Deadline limit = hard_limit();
  while ((ended = ::waitpid(child, &status, WNOHANG)) == 0 && !limit.passed()) {
    bell.ring();
    std::this_thread::sleep_for(milliseconds(1));
  }
  ASSERT_EQ(ended, child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace torch_ucc
