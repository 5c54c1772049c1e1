#include "base/process_state.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace torch_ucc {
namespace {

TEST(ProcessState, OfThisProcessIsRunning) { EXPECT_EQ(process_state(::getpid()), 'R'); }

TEST(ProcessState, FollowsAProcessToItsEnd) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  int status = 0;
  ::kill(child, SIGSTOP);
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_EQ(process_state(child), 'T');
  ::kill(child, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(process_state(child), 'Z');
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(process_state(child), 'X');
}

TEST(ProcessState, KnowsWhichSignalsAreHandled) {
  ASSERT_NE(std::signal(SIGRTMAX - 2, [](int) {}), SIG_ERR);
  EXPECT_TRUE(handles_signal(::getpid(), SIGRTMAX - 2));
  ASSERT_NE(std::signal(SIGRTMAX - 2, SIG_IGN), SIG_ERR);
  EXPECT_FALSE(handles_signal(::getpid(), SIGRTMAX - 2));
  ASSERT_NE(std::signal(SIGRTMAX, [](int) {}), SIG_ERR);  // the highest bit
  EXPECT_TRUE(handles_signal(::getpid(), SIGRTMAX));
  for (const int none : {-1, 0, 65}) {
    EXPECT_FALSE(handles_signal(::getpid(), none));
  }
}

TEST(ProcessState, OfAProcessThatIsNotThereHandlesNothing) { EXPECT_FALSE(handles_signal(1L << 40U, SIGTERM)); }

}  // namespace
}  // namespace torch_ucc
