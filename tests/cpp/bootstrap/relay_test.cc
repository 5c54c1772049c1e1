#include "bootstrap/relay.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "bootstrap/exchange.h"
#include "bootstrap/packed.h"
#include "fakes/limits.h"
#include "fakes/ranks.h"

namespace torch_ucc {
namespace {

// No other test, and no other run of this one, has the same name.
std::string fresh_name() {
  static int count = 0;
  return "relay_test/" + std::to_string(::getpid()) + "/" + std::to_string(count++);
}

std::string long_text() {
  std::string text(3'000'000, 'x');
  for (std::size_t i = 0; i < text.size(); i += 977) {
    text[i] = static_cast<char>(i);
  }
  return text;
}

TEST(Relay, OneReadsAndPassesOn) {
  const std::string name = fresh_name();
  Relay reader(name);
  Relay second(name);
  Relay third(name);
  EXPECT_TRUE(reader.reads());
  EXPECT_FALSE(second.reads() || third.reads());
  EXPECT_FALSE(second.receive());
  EXPECT_FALSE(second.reads()) << "it goes on to wait";
  const std::string text = long_text();
  reader.pass_on(text);
  EXPECT_EQ(second.receive(), text);
  EXPECT_EQ(third.receive(), text);
}

TEST(Relay, PassesOnAnEmptyText) {
  const std::string name = fresh_name();
  Relay reader(name);
  Relay second(name);
  reader.pass_on("");
  EXPECT_EQ(second.receive(), "");
}

TEST(Relay, NamesDoNotMix) {
  Relay one(fresh_name());
  Relay other(fresh_name());
  EXPECT_TRUE(one.reads() && other.reads());
}

TEST(Relay, WhoCannotReachTheReaderReads) {
  const std::string name = fresh_name();
  auto reader = std::make_unique<Relay>(name);
  Relay second(name);
  ASSERT_FALSE(second.reads());
  reader.reset();
  EXPECT_FALSE(second.receive());
  EXPECT_TRUE(second.reads()) << "the reader ended without an answer";
  Relay third(name);
  EXPECT_TRUE(third.reads()) << "there is no reader any more";
}

TEST(Relay, MayStopAsking) {
  const std::string name = fresh_name();
  Relay reader(name);
  Relay second(name);
  second.stop_asking();
  EXPECT_TRUE(second.reads());
  reader.pass_on("text");
}

// Processes, of which the reader is killed.
TEST(Relay, SurvivesTheEndOfItsReader) {
  const std::string name = fresh_name();
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const Relay reader(name);
    const char is_reader = reader.reads() ? 'r' : 'n';
    ::_exit(::write(ready[1], &is_reader, 1) == 1 && ::pause() ? 1 : 1);
  }
  char is_reader = 0;
  ASSERT_EQ(::read(ready[0], &is_reader, 1), 1);
  EXPECT_EQ(is_reader, 'r');
  Relay second(name);
  EXPECT_FALSE(second.reads());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(second.receive());
  EXPECT_TRUE(second.reads());
  ::close(ready[0]);
  ::close(ready[1]);
}

std::string value_of(int rank) { return "value of " + std::to_string(rank) + " " + std::to_string(::getpid()); }

TEST(Relay, SavesReadsOfTheStore) {
  constexpr int kSize = 6;
  const std::string name = fresh_name();
  FakeJob job(kSize);
  std::vector<std::unique_ptr<Relay>> relays;
  std::vector<std::unique_ptr<Exchange>> exchanges;
  std::vector<std::string> expected;
  for (int rank = 0; rank < kSize; ++rank) {
    relays.push_back(std::make_unique<Relay>(name));
    exchanges.push_back(std::make_unique<Exchange>(job.store(rank), "x", rank, kSize, value_of(rank)));
    expected.push_back(value_of(rank));
  }
  for (int rank = 0; rank < kSize; ++rank) {
    const int before = job.store(rank).counts.get;
    const std::size_t place = static_cast<std::size_t>(rank);
    EXPECT_EQ(exchanges[place]->wait(hard_limit(), {}, relays[place].get()), expected);
    EXPECT_EQ(job.store(rank).counts.get - before, rank == 0 ? 1 : 0);
  }
}

TEST(Relay, TextsThatCannotBeMeantAreIgnored) {
  for (const std::string& text :
       {std::string("nonsense"), pack({"of", "another"}), pack({"of", "another", "job"}), std::string()}) {
    const std::string name = fresh_name();
    FakeJob job(2);
    Relay foreign(name);
    Relay mine(name);
    const Exchange other(job.store(1), "x", 1, 2, value_of(1));
    Exchange exchange(job.store(0), "x", 0, 2, value_of(0));
    foreign.pass_on(text);
    EXPECT_EQ(exchange.wait(hard_limit(), {}, &mine), (std::vector<std::string>{value_of(0), value_of(1)}));
    EXPECT_TRUE(mine.reads());
  }
}

// What the store's host sends grows with hosts times ranks, and not with the square of the ranks.
TEST(Relay, TheStoreSendsTheValuesToOneRankOfEachHost) {
  constexpr int kHosts = 4;
  constexpr int kRanksPerHost = 64;
  constexpr int kRanks = kHosts * kRanksPerHost;
  const std::string name = fresh_name();
  FakeJob job(kRanks);
  std::deque<Exchange> exchanges;
  std::deque<Relay> relays;
  for (int rank = 0; rank < kRanks; ++rank) {
    exchanges.emplace_back(job.store(rank), "x", rank, kRanks, value_of(rank));
    relays.emplace_back(name + "/" + std::to_string(rank / kRanksPerHost));
    job.store(rank).bytes_read = 0;  // of those that pack a block
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto place = static_cast<std::size_t>(rank);
    const bool is_first = rank % kRanksPerHost == 0;
    ASSERT_EQ(relays[place].reads(), is_first);
    ASSERT_TRUE(exchanges[place].poll(&relays[place]));
    EXPECT_EQ(job.store(rank).bytes_read, is_first ? job.store(0).bytes_read : 0);
  }
  EXPECT_GT(job.store(0).bytes_read, 0U);
}

// The reader is stopped.
TEST(Relay, WhoHearsNothingLooksForItself) {
  const std::string name = fresh_name();
  FakeJob job(1);
  const Relay silent(name);
  Relay mine(name);
  Exchange exchange(job.store(0), "x", 0, 1, "mine");
  EXPECT_EQ(exchange.wait(hard_limit(), {}, &mine), std::vector<std::string>{"mine"});
  EXPECT_FALSE(mine.reads());
}

}  // namespace
}  // namespace torch_ucc
