#include "trace/journal.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace torch_ucc::trace {
namespace {

constexpr std::size_t kBytes = 256 << 10U;

// Zeroed memory, aligned for Journal::Head.
struct Memory {
  std::vector<std::uint64_t> words = std::vector<std::uint64_t>(kBytes / sizeof(std::uint64_t));
  void* data() { return words.data(); }
  std::string text() { return Journal::read(words.data(), kBytes); }
};

TEST(Journal, IsEmptyAtFirst) {
  Memory memory;
  const Journal journal(memory.data(), kBytes);
  EXPECT_EQ(memory.text(), "");
}

TEST(Journal, KeepsTheOrderOfWhatWasSet) {
  Memory memory;
  Journal journal(memory.data(), kBytes);
  journal.set("a", "1");
  journal.set("b", "2");
  journal.set("a", "3");
  journal.remove("b");
  journal.remove("never set");
  EXPECT_EQ(memory.text(), "a\t1\nb\t2\na\t3\nb\t\n");
}

TEST(Journal, ForgetsWhatNoLongerCountsBeforeTheRoomEnds) {
  Memory memory;
  Journal journal(memory.data(), kBytes);
  journal.set("kept", "true");
  for (int i = 0; i < 100000; ++i) {
    journal.set("changes", std::to_string(i));
  }
  const std::string text = memory.text();
  EXPECT_LT(text.size(), 130U << 10U);
  EXPECT_NE(text.find("kept\ttrue\n"), std::string::npos);
  EXPECT_EQ(text.substr(text.size() - 14), "changes\t99999\n");
}

TEST(Journal, LeavesOutWhatFindsNoRoom) {
  Memory memory;
  Journal journal(memory.data(), kBytes);
  journal.set("b", "1");
  journal.set("long", std::string(kBytes, 'x'));
  EXPECT_EQ(memory.text(), "b\t1\n");
  journal.remove("long");
  journal.set("c", "2");
  EXPECT_NE(memory.text().find("c\t2\n"), std::string::npos);
}

TEST(Journal, RefusesASizeThatCannotBe) {
  Memory memory;
  memory.words[1] = ~std::uint64_t{0};
  EXPECT_EQ(memory.text(), "");
}

TEST(Journal, CanBeReadWhileItIsWritten) {
  Memory memory;
  Journal journal(memory.data(), kBytes);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; !stop; ++i) {
      journal.set("key" + std::to_string(i % 50), std::string(200, static_cast<char>('a' + i % 26)));
    }
  });
  for (int i = 0; i < 200; ++i) {
    const std::string text = memory.text();
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t tab = text.find('\t', at);
      const std::size_t end = text.find('\n', at);
      ASSERT_LT(tab, end);
      ASSERT_NE(end, std::string::npos);
      ASSERT_EQ(text.compare(at, 3, "key"), 0);
      ASSERT_EQ(text.substr(tab + 1, end - tab - 1), std::string(200, text[tab + 1]));
      at = end + 1;
    }
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace torch_ucc::trace
