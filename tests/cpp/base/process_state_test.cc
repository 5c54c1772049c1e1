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

}  // namespace
}  // namespace torch_ucc
