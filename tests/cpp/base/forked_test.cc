#include "base/forked.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace torch_ucc {
namespace {

bool child_says() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(in_forked_child() ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status) == 1;
}

TEST(Forked, MarksChildrenAndNotTheirParent) {
  mark_forked_children();
  mark_forked_children();
  EXPECT_TRUE(child_says());
  EXPECT_FALSE(in_forked_child());
}

}  // namespace
}  // namespace torch_ucc
