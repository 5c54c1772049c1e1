#include "bootstrap/fresh_prefix.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/named_values.h"
#include "base/status.h"
#include "fakes/limits.h"
#include "fakes/ranks.h"

namespace torch_ucc {
namespace {

constexpr char kQueue[] = "torch_ucc/start/world/0";

// What a rank that was there before has answered.
std::string answer(const std::string& ticket, const std::string& prefix) {
  return encode_values({{"ticket", ticket}, {"prefix", prefix}});
}

// What the ranks of a job of `size` found, which exchange a value as they start.
std::vector<std::string> start(FakeJob& job, int size, const std::string& name = "world") {
  std::vector<std::string> prefixes(static_cast<std::size_t>(size));
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(rank);
  }
  job.run(ranks, [&](int rank, FakeKvStore& store) {
    FreshPrefix prefix(name, rank, size);
    for (const char* value : {"a", "b"}) {
      const std::vector<std::string> values = prefix.exchange(store, value + std::to_string(rank), hard_limit());
      ASSERT_EQ(values.size(), static_cast<std::size_t>(size));
      EXPECT_EQ(values.back(), value + std::to_string(size - 1));
    }
    prefixes[static_cast<std::size_t>(rank)] = prefix.text();
  });
  return prefixes;
}

std::string only_one_of(const std::vector<std::string>& prefixes) {
  const std::set<std::string> different(prefixes.begin(), prefixes.end());
  EXPECT_EQ(different.size(), 1U);
  return prefixes.front();
}

// Of rank 1 of two, until `deadline`.
std::vector<std::string> exchange_alone(FakeJob& job, Deadline deadline) {
  return FreshPrefix("world", 1, 2).exchange(job.store(1), "mine", deadline);
}

TEST(FreshPrefix, OfOneRankIsAskedOfNobody) {
  FakeJob job(1);
  EXPECT_EQ(only_one_of(start(job, 1)).rfind("torch_ucc/", 0), 0U);
}

// Rank 0 may never come.
TEST(FreshPrefix, IsNotAskedForBeforeItIsNeeded) {
  FakeJob job(2);
  const FreshPrefix prefix("world", 1, 2);
  EXPECT_EQ(job.store(1).counts.total(), 0);
}

TEST(FreshPrefix, IsTheSameOnAllRanksAndNewEachTime) {
  FakeJob job(5);
  std::set<std::string> found;
  // As many as start: none is mistaken for one of another start
  for (int size : {5, 3, 5, 4, 2, 1}) {
    found.insert(only_one_of(start(job, size)));
  }
  EXPECT_EQ(found.size(), 6U);
}

TEST(FreshPrefix, IsAgreedOnInBlocks) {
  FakeJob job(130);
  only_one_of(start(job, 130));
  only_one_of(start(job, 129));
  only_one_of(start(job, 64));
}

TEST(FreshPrefix, TicketsOfRanksThatDiedAsTheyStartedDoNoHarm) {
  FakeJob job(3);
  job.server.add(std::string(kQueue) + "/tickets", 7);
  only_one_of(start(job, 3));
}

TEST(FreshPrefix, AnAnswerToAnEarlierTicketIsNotTaken) {
  FakeJob job(2);
  job.server.add(std::string(kQueue) + "/tickets", 7);
  job.server.set(std::string(kQueue) + "/answer", answer("7", "torch_ucc/00112233445566778899aabbccddeeff"));
  EXPECT_NE(only_one_of(start(job, 2)), "torch_ucc/00112233445566778899aabbccddeeff");
}

TEST(FreshPrefix, GroupsOfOtherNamesDoNotMix) {
  FakeJob job(2);
  EXPECT_THROW(FreshPrefix("other", 0, 2).exchange(job.store(0), "", Deadline::after(milliseconds(1))), StatusError);
  EXPECT_THROW(exchange_alone(job, Deadline::after(milliseconds(1))), StatusError);
}

TEST(FreshPrefix, NamesTheRankThatDoesNotAnswer) {
  FakeJob job(2);
  try {
    exchange_alone(job, Deadline::after(milliseconds(1)));
    FAIL() << "nobody answered";
  } catch (const StatusError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::timeout);
    EXPECT_EQ(error.status().message(), "timed out waiting for rank 0 of 2 to create the group");
  }
}

TEST(FreshPrefix, WhatIsNoAnswerIsRefused) {
  for (const std::string& nonsense :
       {std::string(), std::string("x"), encode_values({{"ticket", "9"}}),
        answer("x", "torch_ucc/00112233445566778899aabbccddeeff"), answer("9", ""), answer("9", "torch_ucc/"),
        answer("9", "torch_ucc/00"), answer("9", "torch_ucc/0011223344556677x899aabbccddeeff"),
        answer("9", "elsewhere/00112233445566778899aabbccddeeff")}) {
    FakeJob job(2);
    job.server.set(std::string(kQueue) + "/answer", nonsense);
    try {
      exchange_alone(job, hard_limit());
      FAIL() << nonsense;
    } catch (const StatusError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::transport) << nonsense;
    }
  }
}

}  // namespace
}  // namespace torch_ucc
