#include "bootstrap/exchange.h"

#include <gtest/gtest.h>

#include <deque>
#include <numeric>
#include <string>
#include <vector>

#include "base/status.h"
#include "fakes/limits.h"
#include "fakes/ranks.h"

namespace torch_ucc {
namespace {

std::string value_of(int rank) { return "value of " + std::to_string(rank); }

std::vector<std::string> values_of_all(int size) {
  std::vector<std::string> values;
  for (int rank = 0; rank < size; ++rank) {
    values.push_back(value_of(rank));
  }
  return values;
}

// What `action` threw.
template <typename Action>
Status thrown_by(Action action) {
  try {
    action();
    return {};
  } catch (const StatusError& error) {
    return error.status();
  }
}

Status failure_of(Exchange& exchange, Deadline deadline) {
  return thrown_by([&] { exchange.wait(deadline); });
}

Status failure_of(FakeKvStore& store, int rank, int size, Deadline deadline) {
  return thrown_by([&] { Exchange(store, "x", rank, size, value_of(rank)).wait(deadline); });
}

TEST(Exchange, OfOneRankEndsAtOnce) {
  FakeJob job(1);
  Exchange exchange(job.store(0), "x", 0, 1, "mine");
  EXPECT_EQ(exchange.poll(), std::vector<std::string>{"mine"});
}

TEST(Exchange, HasNothingUntilAllArrived) {
  FakeJob job(2);
  Exchange first(job.store(0), "x", 0, 2, value_of(0));
  EXPECT_FALSE(first.poll());
  Exchange second(job.store(1), "x", 1, 2, value_of(1));
  EXPECT_EQ(first.poll(), values_of_all(2));
  EXPECT_EQ(second.poll(), values_of_all(2));
}

TEST(Exchange, CarriesAnyBytes) {
  FakeJob job(2);
  const std::string bytes("\0\xff\n\0", 4);
  const Exchange first(job.store(0), "x", 0, 2, bytes);
  Exchange second(job.store(1), "x", 1, 2, "");
  EXPECT_EQ(second.poll(), (std::vector<std::string>{bytes, ""}));
}

TEST(Exchange, ExchangesOfDifferentNamesDoNotMix) {
  FakeJob job(1);
  Exchange a(job.store(0), "a", 0, 1, "1");
  Exchange b(job.store(0), "b", 0, 1, "2");
  EXPECT_EQ(a.poll(), std::vector<std::string>{"1"});
  EXPECT_EQ(b.poll(), std::vector<std::string>{"2"});
  EXPECT_TRUE(job.store(0).overwritten.empty());
}

// Of ranks in `blocks` blocks: the gets depend on who is late.
void expect_few_operations(const FakeJob& job, int blocks) {
  int sets = 0;
  int adds = 0;
  for (const FakeKvStore& store : job.stores) {
    ASSERT_LE(store.counts.set, 3);
    ASSERT_LE(store.counts.add, 2);
    ASSERT_LE(store.counts.get_all, 2);
    ASSERT_TRUE(store.overwritten.empty());
    sets += store.counts.set;
    adds += store.counts.add;
  }
  const int packed = blocks == 1 ? 0 : blocks;
  EXPECT_EQ(sets, job.size() + packed + 1);
  EXPECT_EQ(adds, job.size() + packed);
}

TEST(Exchange, CostsRanksInThreadsAFewOperationsEach) {
  for (const auto& [ranks, blocks] : {std::pair(64, 1), std::pair(65, 2), std::pair(130, 3)}) {
    FakeJob job(ranks);
    const auto expected = values_of_all(ranks);
    job.run([&, ranks = ranks](int rank, FakeKvStore& store) {
      Exchange exchange(store, "x", rank, ranks, value_of(rank));
      ASSERT_EQ(exchange.wait(hard_limit()), expected);
    });
    expect_few_operations(job, blocks);
  }
}

// In one thread, so the gets can be counted too: one while somebody is missing, one when all are
// there.
TEST(Exchange, Costs10000RanksTheSame) {
  constexpr int kRanks = 10000;
  FakeJob job(kRanks);
  std::deque<Exchange> exchanges;
  for (int rank = 0; rank < kRanks; ++rank) {
    Exchange& exchange = exchanges.emplace_back(job.store(rank), "x", rank, kRanks, value_of(rank));
    ASSERT_EQ(exchange.poll().has_value(), rank == kRanks - 1);
  }
  const auto expected = values_of_all(kRanks);
  for (const int rank : {0, 1, 4999, 9998}) {  // every rank reads the values of all: some will do
    ASSERT_EQ(exchanges[static_cast<std::size_t>(rank)].poll(), expected);
  }
  expect_few_operations(job, 157);
  for (const FakeKvStore& store : job.stores) {
    ASSERT_LE(store.counts.total(), 8);
    ASSERT_LE(store.most_keys, 157);
  }
}

TEST(Exchange, NamesTheRanksThatAreMissing) {
  FakeJob job(4);
  const Exchange other(job.store(2), "x", 2, 4, value_of(2));
  const Status status = failure_of(job.store(0), 0, 4, Deadline::after(milliseconds(2)));
  EXPECT_EQ(status.code(), StatusCode::timeout);
  EXPECT_EQ(status.message(), "timed out waiting for rank(s) 1, 3 of 4 to create the group");
}

TEST(Exchange, NamesAFewAndCountsTheOthers) {
  FakeJob job(100);
  const Status status = failure_of(job.store(0), 0, 100, Deadline::after(milliseconds(2)));
  EXPECT_EQ(status.message(), "timed out waiting for rank(s) 1, 2, 3, 4, 5, 6, 7, 8 and 91 more of 100 to create the group");
}

TEST(Exchange, NamesThemWhereverTheyAre) {
  constexpr int kRanks = 300;
  FakeJob job(kRanks);
  std::deque<Exchange> others;
  for (int rank = 1; rank < kRanks; ++rank) {
    if (rank != 70 && rank != 299) {
      others.emplace_back(job.store(rank), "x", rank, kRanks, value_of(rank));
    }
  }
  const Status status = failure_of(job.store(0), 0, kRanks, Deadline::after(milliseconds(2)));
  EXPECT_EQ(status.message(), "timed out waiting for rank(s) 70, 299 of 300 to create the group");
}

TEST(Exchange, SaysThatTheLastIsSilentWhoEndedAfterItCame) {
  FakeJob job(2);
  Exchange first(job.store(0), "x", 0, 2, value_of(0));
  job.store(1).faults.dies_after = 2;  // a set and an add
  EXPECT_THROW(Exchange(job.store(1), "x", 1, 2, value_of(1)), StatusError);
  const Status status = failure_of(first, Deadline::after(milliseconds(2)));
  EXPECT_EQ(status.code(), StatusCode::timeout);
  EXPECT_EQ(status.message(), "timed out waiting for the last rank of 2 to create the group");
}

TEST(Exchange, RefusesWhatNobodyPacked) {
  FakeJob job(2);
  Exchange first(job.store(0), "x", 0, 2, value_of(0));
  const Exchange second(job.store(1), "x", 1, 2, value_of(1));
  job.store(0).faults.lies = true;
  EXPECT_THROW(first.poll(), StatusError);
}

TEST(Exchange, TimesOutOnAStoreThatStalls) {
  FakeJob job(2);
  Exchange exchange(job.store(0), "x", 0, 2, value_of(0));
  const Exchange other(job.store(1), "x", 1, 2, value_of(1));
  job.store(0).faults.stalls = true;
  EXPECT_EQ(failure_of(exchange, Deadline::after(milliseconds(2))).code(), StatusCode::timeout);
}

TEST(Exchange, SaysThatTheStoreIsGoneWheneverItGoes) {
  for (int operations = 0; operations < 4; ++operations) {  // set, add, get_all, set
    FakeJob job(2);
    const Exchange other(job.store(1), "x", 1, 2, value_of(1));
    job.store(0).faults.dies_after = operations;
    const Status status = failure_of(job.store(0), 0, 2, hard_limit());
    EXPECT_EQ(status.code(), StatusCode::transport);
    EXPECT_EQ(status.message(), "the store is gone");
  }
}

}  // namespace
}  // namespace torch_ucc
