#include "liveness/stack_offer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

namespace torch_ucc {
namespace {

TEST(StackOffer, IsTheLastOfAJournal) {
  EXPECT_FALSE(StackOffer::in(""));
  EXPECT_FALSE(StackOffer::in("process\t{}\nother/stacks\t[1, 2]\n"));
  const auto offer = StackOffer::in("stacks\t[60, 5]\nprocess\t{}\nstacks\t[62, 17]\n");
  ASSERT_TRUE(offer);
  EXPECT_EQ(offer->signal, 62);
  EXPECT_EQ(offer->descriptor, 17);
}

TEST(StackOffer, MayBeWithdrawn) {
  EXPECT_FALSE(StackOffer::in("stacks\t[60, 5]\nstacks\t\n"));
  EXPECT_FALSE(StackOffer::in("stacks\tnull\n"));
  EXPECT_TRUE(StackOffer::in("stacks\t[60, 5]"));  // a line that is cut off
}

// A process whose handler writes a text.
class Offering {
 public:
  explicit Offering(const char* name) : memory_(::memfd_create(name, 0)) {
    ::fcntl(memory_, F_SETFL, O_APPEND);
    std::array<int, 2> ready{};
    EXPECT_EQ(::pipe(ready.data()), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      written_to = memory_;
      std::signal(kSignal, [](int) { [[maybe_unused]] const auto size = ::write(written_to, "a stack", 7); });
      [[maybe_unused]] const auto size = ::write(ready[1], "r", 1);
      while (true) {
        ::pause();
      }
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Offering() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(memory_);
  }
  int pid() const { return pid_; }
  bool is_alive() const { return ::waitpid(pid_, nullptr, WNOHANG) == 0; }
  StackOffer offer() const { return {kSignal, memory_}; }

 private:
  static constexpr int kSignal = 50;
  static inline int written_to = -1;
  const int memory_;
  int pid_ = 0;
};

std::string answer_of(const Offering& process) {
  std::string text;
  for (int i = 0; i < 20000 && text.empty(); ++i) {
    text = process.offer().read(process.pid());
    ::usleep(1000);
  }
  return text;
}

TEST(StackOffer, AsksAndReads) {
  const Offering process("torch-ucc-stacks");
  EXPECT_EQ(process.offer().read(process.pid()), "");
  for (int i = 0; i < 3; ++i) {  // each time the memory is emptied first
    ASSERT_TRUE(process.offer().ask(process.pid()));
    EXPECT_EQ(answer_of(process), "a stack");
  }
}

TEST(StackOffer, SendsNoSignalWithoutAHandler) {
  const Offering process("torch-ucc-stacks");
  const StackOffer another{process.offer().signal + 1, process.offer().descriptor};
  EXPECT_FALSE(another.ask(process.pid()));
  EXPECT_TRUE(process.is_alive());
}

TEST(StackOffer, LeavesOtherFilesAlone) {
  const Offering process("something-else");
  EXPECT_FALSE(process.offer().ask(process.pid()));
  EXPECT_EQ(::write(process.offer().descriptor, "kept", 4), 4);
  EXPECT_FALSE(process.offer().ask(process.pid()));
  EXPECT_EQ(process.offer().read(process.pid()), "");
  EXPECT_EQ(::lseek(process.offer().descriptor, 0, SEEK_END), 4);
}

}  // namespace
}  // namespace torch_ucc
