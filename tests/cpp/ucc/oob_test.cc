// The callbacks that UCC would call, called as UCC calls them: allgather, test until it ended,
// free.
#include "ucc/oob.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "fakes/limits.h"
#include "fakes/ranks.h"

namespace torch_ucc {
namespace {

struct Gathered {
  ucc_status_t status = UCC_OK;
  std::vector<int> values;
};

Gathered allgather(Oob& oob, int mine) {
  const ucc_context_oob_coll_t calls = oob.params();
  Gathered result;
  result.values.resize(calls.n_oob_eps);
  void* request = nullptr;
  result.status = calls.allgather(&mine, result.values.data(), sizeof(int), calls.coll_info, &request);
  if (result.status == UCC_OK) {
    do {
      result.status = calls.req_test(request);
    } while (result.status == UCC_INPROGRESS);
    EXPECT_EQ(calls.req_free(request), UCC_OK);
  }
  return result;
}

Status failure_of(const Oob& oob) {
  try {
    oob.rethrow_failure();
    return {};
  } catch (const StatusError& error) {
    return error.status();
  }
}

std::string bytes_of(int value) { return {reinterpret_cast<const char*>(&value), sizeof(value)}; }

TEST(Oob, TellsUccWhoTakesPart) {
  FakeJob job(3);
  Oob oob(job.store(2), "g", 2, 3);
  const auto params = oob.params();
  EXPECT_EQ(params.oob_ep, 2U);
  EXPECT_EQ(params.n_oob_eps, 3U);
}

TEST(Oob, GathersByRankAgainAndAgain) {
  FakeJob job(4);
  job.run([](int rank, FakeKvStore& store) {
    Oob oob(store, "g", rank, 4);
    for (int round = 0; round < 10; ++round) {
      const Gathered gathered = allgather(oob, 100 * round + rank);
      ASSERT_EQ(gathered.status, UCC_OK);
      ASSERT_EQ(gathered.values, (std::vector<int>{100 * round, 100 * round + 1, 100 * round + 2, 100 * round + 3}));
    }
    EXPECT_TRUE(failure_of(oob).ok());
    EXPECT_TRUE(store.overwritten.empty());
  });
}

TEST(Oob, TestDoesNotBlockOnAPeer) {
  FakeJob job(2);
  Oob oob(job.store(0), "g", 0, 2);
  const auto calls = oob.params();
  int mine = 1;
  std::vector<int> all(2);
  void* request = nullptr;
  ASSERT_EQ(calls.allgather(&mine, all.data(), sizeof(int), calls.coll_info, &request), UCC_OK);
  EXPECT_EQ(calls.req_test(request), UCC_INPROGRESS);
  EXPECT_EQ(calls.req_test(request), UCC_INPROGRESS);
  EXPECT_EQ(calls.req_free(request), UCC_OK);  // UCC may give up an exchange
}

// Two ranks that close, and have published.
struct Closing {
  Closing() {
    for (Oob* oob : {&first, &second}) {
      oob->set_closing();
      void** const request = oob == &first ? &of_first : &of_second;
      EXPECT_EQ(calls.allgather(&value, all.data(), sizeof(int), oob, request), UCC_OK);
    }
  }
  ~Closing() {
    EXPECT_EQ(calls.req_free(of_first), UCC_OK);
    EXPECT_EQ(calls.req_free(of_second), UCC_OK);
  }

  FakeJob job{2};
  Oob first{job.store(0), "g", 0, 2};
  Oob second{job.store(1), "g", 1, 2};
  const ucc_context_oob_coll_t calls = first.params();
  int value = 7;
  std::vector<int> all = std::vector<int>(2);
  void* of_first = nullptr;
  void* of_second = nullptr;
};

TEST(Oob, RankZeroLeavesLast) {
  const Closing ranks;
  EXPECT_EQ(ranks.calls.req_test(ranks.of_first), UCC_INPROGRESS);
  EXPECT_EQ(ranks.calls.req_test(ranks.of_second), UCC_OK);
  EXPECT_EQ(ranks.calls.req_test(ranks.of_first), UCC_OK);
}

TEST(Oob, RankZeroDoesNotStayForOneThatNeverReads) {
  const Closing ranks;
  ucc_status_t status = UCC_INPROGRESS;
  while (status == UCC_INPROGRESS) {
    status = ranks.calls.req_test(ranks.of_first);
  }
  EXPECT_EQ(status, UCC_OK);
}

TEST(Oob, FailsAtItsDeadlineWithTheReason) {
  FakeJob job(2);
  Oob oob(job.store(0), "g", 0, 2);
  oob.set_deadline(Deadline::after(milliseconds(2)));
  EXPECT_LT(allgather(oob, 1).status, 0);
  EXPECT_EQ(failure_of(oob).code(), StatusCode::timeout);
}

TEST(Oob, FailsOnADeadStoreWithTheReasonWheneverItDies) {
  for (int operations = 0; operations < 4; ++operations) {  // set, add, get_all, set
    FakeJob job(2);
    const Exchange other(job.store(1), "g/oob/0", 1, 2, bytes_of(2));
    job.store(0).faults.dies_after = operations;
    Oob oob(job.store(0), "g", 0, 2);
    EXPECT_LT(allgather(oob, 1).status, 0);
    EXPECT_EQ(failure_of(oob).code(), StatusCode::transport);
    EXPECT_EQ(failure_of(oob).message(), "the store is gone");
  }
}

TEST(Oob, RefusesAValueOfTheWrongSizeAndWritesNothingBeyondTheBuffer) {
  for (const std::string& garbage : {std::string(), std::string("123"), std::string(4096, 'x')}) {
    FakeJob job(2);
    const Exchange other(job.store(1), "g/oob/0", 1, 2, garbage);
    Oob oob(job.store(0), "g", 0, 2);
    const Gathered gathered = allgather(oob, 1);
    EXPECT_LT(gathered.status, 0);
    EXPECT_EQ(gathered.values.back(), 0);
    EXPECT_EQ(failure_of(oob).code(), StatusCode::transport);
  }
}

// The process that hosted the store has left: it needs no goodbye.
TEST(Oob, WhileClosingADeadStoreIsAPeerThatIsDone) {
  for (int operations = 0; operations < 4; ++operations) {
    FakeJob job(2);
    const Exchange other(job.store(1), "g/oob/0", 1, 2, bytes_of(2));
    job.store(0).faults.dies_after = operations;
    Oob oob(job.store(0), "g", 0, 2);
    oob.set_closing();
    EXPECT_EQ(allgather(oob, 1).status, UCC_OK);
    EXPECT_TRUE(failure_of(oob).ok());
  }
}

TEST(Oob, WhileClosingAPeerThatDoesNotComeIsNotWaitedForForever) {
  FakeJob job(2);
  Oob oob(job.store(0), "g", 0, 2);
  oob.set_closing();
  oob.set_deadline(Deadline::after(milliseconds(2)));
  EXPECT_EQ(allgather(oob, 1).status, UCC_OK);
}

TEST(Oob, FailsAtOnceWhenAPeerIsGoneWithTheReason) {
  FakeJob job(2);
  Oob oob(job.store(0), "g", 0, 2);
  oob.set_give_up([] { throw StatusError(Status(StatusCode::peer_gone, "rank 1 has died")); });
  EXPECT_LT(allgather(oob, 1).status, 0);
  EXPECT_EQ(failure_of(oob).code(), StatusCode::peer_gone);
  EXPECT_EQ(failure_of(oob).message(), "rank 1 has died");
}

TEST(Oob, WhatInterruptsAnExchangeReachesTheCallerAsItIs) {
  struct Interrupt {};
  FakeJob job(2);
  Oob oob(job.store(0), "g", 0, 2);
  oob.set_deadline(hard_limit());
  oob.set_give_up([] { throw Interrupt(); });
  EXPECT_NE(allgather(oob, 1).status, UCC_OK);
  EXPECT_THROW(oob.rethrow_failure(), Interrupt);
}

}  // namespace
}  // namespace torch_ucc
