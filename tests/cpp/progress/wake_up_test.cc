#include "progress/wake_up.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "fakes/limits.h"

namespace torch_ucc {
namespace {

class WakeUpTest : public testing::Test {
 protected:
  // Whether `sleep` ends once another thread did `wake`, again and again as a ring may come before
  // the sleep.
  bool ends(const std::function<void()>& sleep, const std::function<void()>& wake) {
    std::atomic<bool> over{false};
    std::thread other([&] {
      while (!over) {
        wake();
        std::this_thread::sleep_for(milliseconds(1));
      }
    });
    const Clock::time_point begun = Clock::now();
    sleep();
    over = true;
    other.join();
    return Clock::now() - begun < kHardLimit;
  }

  std::atomic<bool> work_{false};
  WakeUp wake_up_{[this] { return work_.load(); }};
};

TEST_F(WakeUpTest, ASleepEndsWhenThereIsWork) {
  EXPECT_TRUE(ends([&] { wake_up_.sleep(); },
                   [&] {
                     work_ = true;
                     wake_up_.wake_if_asleep();
                   }));
}

TEST_F(WakeUpTest, EverythingEndsOnceStopped) {
  wake_up_.stop();
  EXPECT_TRUE(wake_up_.stopped());
  EXPECT_TRUE(ends([&] { wake_up_.sleep(); }, [] {}));
  EXPECT_TRUE(ends([&] { wake_up_.nap(kHardLimit, false); }, [] {}));
}

TEST_F(WakeUpTest, ANapEndsWhenCalled) {
  work_ = true;
  EXPECT_TRUE(ends([&] { wake_up_.nap(kHardLimit, false); }, [&] { wake_up_.call(); }));
  EXPECT_TRUE(wake_up_.take_call());
  EXPECT_FALSE(wake_up_.take_call());
}

TEST_F(WakeUpTest, ANapThatCanBeRousedEndsWhenRoused) {
  work_ = true;
  EXPECT_TRUE(ends([&] { wake_up_.nap(kHardLimit, true); }, [&] { wake_up_.rouse(); }));
}

TEST_F(WakeUpTest, ANapThatCannotBeRousedGoesOn) {
  work_ = true;
  wake_up_.rouse();
  const Clock::time_point begun = Clock::now();
  wake_up_.nap(milliseconds(20), false);
  EXPECT_GE(Clock::now() - begun, milliseconds(20));
}

TEST_F(WakeUpTest, WithoutWorkNobodyIsCalledOrRoused) {
  wake_up_.call();
  wake_up_.rouse();
  EXPECT_FALSE(wake_up_.take_call());
  const Clock::time_point begun = Clock::now();
  wake_up_.nap(milliseconds(20), true);
  EXPECT_GE(Clock::now() - begun, milliseconds(20));
}

}  // namespace
}  // namespace torch_ucc
