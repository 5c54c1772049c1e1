#include "shm/mail_box.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "fakes/messages_job.h"

namespace torch_ucc::shm {
namespace {

using Kind = MailLine::Kind;

class MailBoxTest : public testing::Test {
 protected:
  bool put(const std::string& text) {
    char* const room = writer_.room(text.size());
    if (room == nullptr) {
      return false;
    }
    std::memcpy(room, text.data(), text.size());
    writer_.put(Kind::whole, 1, 2, text.size(), text.size());
    return true;
  }
  std::string take() {
    bool is_sound = false;
    const MailReader::Letter letter = reader_.next(is_sound);
    EXPECT_TRUE(is_sound);
    std::string text(letter.data, letter.length);
    reader_.take(letter);
    return text;
  }

  Boxes boxes_{2};
  MailBox& mine_ = *boxes_.box(0, 1);
  MailBox& theirs_ = *boxes_.box(1, 0);
  MailWriter writer_{mine_, theirs_};
  MailReader reader_{theirs_, mine_};  // of the other process
};

TEST_F(MailBoxTest, ALineSaysWhatItsWriterSaid) {
  EXPECT_FALSE(reader_.has_next());
  ASSERT_NE(writer_.room(3), nullptr);
  std::memcpy(writer_.room(3), "abc", 3);
  EXPECT_FALSE(reader_.has_next());
  writer_.put(Kind::more, 7, 8, 9, 3);
  ASSERT_TRUE(reader_.has_next());
  bool is_sound = false;
  const MailReader::Letter letter = reader_.next(is_sound);
  EXPECT_TRUE(is_sound);
  EXPECT_EQ(letter.kind, Kind::more);
  EXPECT_EQ(letter.message, 7U);
  EXPECT_EQ(letter.tag, 8U);
  EXPECT_EQ(letter.bytes, 9U);
  EXPECT_EQ(std::string(letter.data, letter.length), "abc");
  reader_.take(letter);
  EXPECT_FALSE(reader_.has_next());
}

TEST_F(MailBoxTest, LinesAndDataAreWrittenAgainOnlyWhenTheyWereTaken) {
  for (const std::size_t size : {std::size_t{8}, MailLine::kSmall, MailLine::kSmall + 1, std::size_t{4096}, MailBox::kData / 2}) {
    std::size_t count = 0;
    while (put(std::string(size, static_cast<char>('a' + count % 26)))) {
      ++count;
    }
    EXPECT_LE(count, MailBox::kLines);
    EXPECT_LE(size <= MailLine::kSmall ? 0 : count * size, MailBox::kData);
    EXPECT_GE(count, size <= 2048 ? MailBox::kLines : MailBox::kData / size - 1);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(take(), std::string(size, static_cast<char>('a' + i % 26)));
    }
  }
}

// In any order of sizes, with a reader that is now ahead and now behind.
TEST_F(MailBoxTest, EverySizeArrivesInEveryPlace) {
  std::mt19937 random(7);
  const auto up_to = [&](std::size_t most) { return std::uniform_int_distribution<std::size_t>(0, most)(random); };
  std::deque<std::string> under_way;
  std::uint64_t sent = 0;
  while (sent < 20 * MailBox::kData) {
    std::string text(up_to(3) == 0 ? up_to(MailBox::kData / 2) : up_to(300), static_cast<char>('a' + up_to(25)));
    const bool has_room = put(text);
    if (has_room) {
      sent += text.size();
      under_way.push_back(std::move(text));
    }
    for (std::size_t i = has_room ? up_to(2) : 1 + up_to(under_way.size() - 1); i != 0 && !under_way.empty(); --i) {
      ASSERT_TRUE(reader_.has_next());
      ASSERT_EQ(take(), under_way.front());
      under_way.pop_front();
    }
  }
}

TEST_F(MailBoxTest, TheWriterMayWaitForDataAndForHalfOfTheLines) {
  bool is_sound = false;
  int told = 0;
  for (std::uint64_t i = 0; i < MailBox::kLines; ++i) {
    ASSERT_TRUE(put("x"));
    told += reader_.take(reader_.next(is_sound)) ? 1 : 0;
  }
  EXPECT_EQ(told, 2);
  ASSERT_TRUE(put(std::string(1000, 'x')));
  EXPECT_TRUE(reader_.take(reader_.next(is_sound)));
}

TEST_F(MailBoxTest, WhatIsSettledIsKnownToTheWriter) {
  EXPECT_EQ(writer_.settled(), 0U);
  reader_.settle(5);
  reader_.settle(6);
  EXPECT_EQ(writer_.settled(), 11U);
}

TEST_F(MailBoxTest, ACountThatCannotBeIsIgnored) {
  while (put("full")) {
  }
  for (const std::uint64_t lie : {MailBox::kLines + 1, ~std::uint64_t{0}}) {
    theirs_.taken.store(lie);
    EXPECT_EQ(writer_.room(0), nullptr);
  }
  theirs_.taken.store(1);
  EXPECT_NE(writer_.room(0), nullptr);
}

TEST_F(MailBoxTest, ALineThatCannotBeIsNotSound) {
  const auto sound = [&](Kind kind, std::uint32_t length) {
    MailLine& line = mine_.lines[0];
    line.kind = kind;
    line.length = length;
    line.stamp.store(1);
    bool is_sound = false;
    reader_.next(is_sound);
    return is_sound;
  };
  EXPECT_TRUE(sound(Kind::whole, 88));
  EXPECT_TRUE(sound(Kind::more, MailBox::kData / 2));
  EXPECT_TRUE(sound(Kind::withdraw, 0));
  EXPECT_FALSE(sound(Kind::whole, MailBox::kData / 2 + 1));
  EXPECT_FALSE(sound(Kind::more, 0xffffffff));
  EXPECT_FALSE(sound(Kind::offer, 1));
  EXPECT_FALSE(sound(static_cast<Kind>(6), 0));
  EXPECT_FALSE(sound(static_cast<Kind>(0xffffffff), 0));
}

}  // namespace
}  // namespace torch_ucc::shm
