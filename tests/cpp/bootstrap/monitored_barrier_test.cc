#include "bootstrap/monitored_barrier.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "fakes/limits.h"
#include "fakes/ranks.h"

namespace torch_ucc {
namespace {

constexpr milliseconds kLong = kHardLimit;
constexpr milliseconds kShort{2};  // only for ranks that wait for what does not come

// Ranks of one group, and what the barrier threw in each; ok if nothing.
struct Group {
  explicit Group(int size) : job(size), verdicts(static_cast<std::size_t>(size)) {}

  FakeJob job;
  std::vector<Status> verdicts;

  struct How {
    milliseconds limit = kLong;
    bool wait_all_ranks = false;
    std::uint64_t number = 1;
  };
  Status enter(int rank, How how) {
    try {
      const MonitoredBarrier barrier{job.store(rank), "g/barrier", rank, job.size(), how.number};
      wait_for_all(barrier, how.limit, how.wait_all_ranks);
      return {};
    } catch (const StatusError& error) {
      return error.status();
    }
  }

  bool has_come(int rank) const { return job.server.find("g/barrier/" + std::to_string(rank)).has_value(); }

  // `ranks` come, and rank 0 with them, with `how`: it looks when the others are there, or it might
  // not see one that is slow.
  void come(const std::vector<int>& ranks, How how) {
    job.run(ranks, [&](int rank, FakeKvStore&) {
      How mine{.limit = kLong, .wait_all_ranks = how.wait_all_ranks, .number = how.number};
      if (rank == 0) {
        for (const int other : ranks) {
          while (other != 0 && !has_come(other)) {
            std::this_thread::yield();
          }
        }
        mine.limit = how.limit;
      }
      verdicts[static_cast<std::size_t>(rank)] = enter(rank, mine);
    });
  }

  void expect(int rank, StatusCode code, const std::string& message) const {
    const Status& verdict = verdicts[static_cast<std::size_t>(rank)];
    EXPECT_EQ(verdict.code(), code) << "rank " << rank;
    EXPECT_EQ(verdict.message(), message) << "rank " << rank;
  }
};

std::string told(int rank, const std::string& what) {
  return "Rank " + std::to_string(rank) +
         " successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0: " + what;
}

TEST(MonitoredBarrier, OfOneRankIsPassedAtOnce) {
  Group group(1);
  EXPECT_TRUE(group.enter(0, {}).ok());
}

TEST(MonitoredBarrier, NobodyPassesBeforeTheLastCame) {
  Group group(4);
  std::atomic<bool> last_came{false};
  group.job.run([&](int rank, FakeKvStore&) {
    if (rank == 2) {
      while (!group.has_come(1) || !group.has_come(3)) {
        std::this_thread::yield();
      }
      last_came.store(true);
    }
    EXPECT_TRUE(group.enter(rank, {}).ok());
    EXPECT_TRUE(last_came.load()) << "rank " << rank;
  });
}

TEST(MonitoredBarrier, IsPassedAgainAndAgainInStep) {
  constexpr int kRanks = 4;
  constexpr std::uint64_t kTimes = 10;
  Group group(kRanks);
  std::atomic<std::uint64_t> entered{0};
  group.job.run([&](int rank, FakeKvStore&) {
    for (std::uint64_t number = 1; number <= kTimes; ++number) {
      entered.fetch_add(1);
      ASSERT_TRUE(group.enter(rank, {.number = number}).ok());
      ASSERT_GE(entered.load(), number * kRanks);
    }
  });
  for (int rank = 1; rank < kRanks; ++rank) {  // one key a rank, however many barriers
    EXPECT_EQ(group.job.store(rank).counts.set, static_cast<int>(kTimes));
    EXPECT_EQ(group.job.store(rank).overwritten.size(), kTimes - 1);
  }
}

TEST(MonitoredBarrier, GroupsOfOneStoreDoNotMix) {
  Group group(2);
  ASSERT_FALSE(group.enter(1, {.limit = -kLong}).ok());  // has come, and left
  const MonitoredBarrier other{group.job.store(0), "h/barrier", 0, 2, 1};
  EXPECT_THROW(wait_for_all(other, kShort, false), StatusError);
  EXPECT_TRUE(group.enter(0, {.limit = kShort}).ok());
}

TEST(MonitoredBarrier, WhyRankZeroGaveUpIsToldToTheOthers) {
  Group group(2);
  const Status lost(StatusCode::peer_gone, "rank 2 has died");
  const MonitoredBarrier barrier{group.job.store(0), "g/barrier", 0, 2, 1, [&] { throw StatusError(lost); }};
  try {
    wait_for_all(barrier, kLong, false);
    FAIL() << "rank 1 has not come";
  } catch (const StatusError& error) {
    EXPECT_EQ(error.status().message(), lost.message());
  }
  group.verdicts[1] = group.enter(1, {});
  group.expect(1, StatusCode::timeout, told(1, lost.message()));
}

TEST(MonitoredBarrier, TheRankThatIsMissingIsNamedEverywhere) {
  Group group(4);
  group.come({0, 1, 3}, {.limit = kShort});
  const std::string missing = "Rank 2 failed to pass monitoredBarrier in 2 ms";
  group.expect(0, StatusCode::timeout, "[Rank 0]: " + missing);
  group.expect(1, StatusCode::timeout, told(1, missing));
  group.expect(3, StatusCode::timeout, told(3, missing));
}

TEST(MonitoredBarrier, OfSeveralThatAreMissingTheFirstIsNamed) {
  Group group(5);
  group.come({0, 2, 4}, {.limit = kShort});
  group.expect(0, StatusCode::timeout, "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 2 ms");
  group.expect(4, StatusCode::timeout, told(4, "Rank 1 failed to pass monitoredBarrier in 2 ms"));
}

TEST(MonitoredBarrier, OrAllOfThem) {
  Group group(5);
  group.come({0, 2}, {.limit = kShort, .wait_all_ranks = true});
  group.expect(0, StatusCode::timeout, "[Rank 0]: Ranks 1, 3, 4 failed to pass monitoredBarrier in 2 ms");
  group.expect(2, StatusCode::timeout, told(2, "Ranks 1, 3, 4 failed to pass monitoredBarrier in 2 ms"));
}

TEST(MonitoredBarrier, WhoCameToAnEarlierOneIsMissingInThis) {
  Group group(3);
  group.come({0, 1, 2}, {});
  ASSERT_TRUE(group.verdicts[0].ok());
  ASSERT_FALSE(group.enter(1, {.limit = -kLong, .number = 2}).ok());
  const Status status = group.enter(0, {.limit = kShort, .number = 2});
  EXPECT_EQ(status.message(), "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 2 ms");
}

TEST(MonitoredBarrier, ALateRankLearnsThatItWasMissing) {
  Group group(3);
  group.come({0, 1}, {.limit = kShort});
  const Status status = group.enter(2, {});
  EXPECT_EQ(status.code(), StatusCode::timeout);
  EXPECT_EQ(status.message(), told(2, "Rank 2 failed to pass monitoredBarrier in 2 ms"));
}

TEST(MonitoredBarrier, ALaterOneCanBePassedAfterOneThatFailed) {
  Group group(3);
  group.come({0, 1}, {.limit = kShort});
  EXPECT_FALSE(group.enter(2, {}).ok());
  group.come({0, 1, 2}, {.number = 2});
  for (const Status& verdict : group.verdicts) {
    EXPECT_TRUE(verdict.ok()) << verdict.message();
  }
}

TEST(MonitoredBarrier, ALateRankLearnsThatTheOthersWentOn) {
  Group group(3);
  group.come({0, 1}, {.limit = kShort});
  group.come({0, 1}, {.limit = kShort, .number = 2});
  const Status status = group.enter(2, {.number = 1});
  EXPECT_EQ(status.code(), StatusCode::timeout);
  EXPECT_EQ(status.message(), told(2, "it has gone on to a later barrier"));
}

TEST(MonitoredBarrier, ALimitOfNothingEndsOnRank0BeforeItAsksAnybody) {
  for (const milliseconds limit : {milliseconds(0), milliseconds(-5)}) {
    Group group(2);
    const Status status = group.enter(0, {.limit = limit});
    EXPECT_EQ(status.code(), StatusCode::timeout);
    EXPECT_EQ(status.message(),
              "Rank 0 timed out in monitoredBarrier after " + std::to_string(limit.count()) + " ms: its limit leaves no time");
    EXPECT_EQ(group.job.store(0).counts.total(), 0);
  }
}

TEST(MonitoredBarrier, WithoutRank0TheOthersEndByThemselves) {
  Group group(2);
  // Less than nothing: the time that the others give rank 0 beyond their limit is longer than a
  // test should take.
  const Status status = group.enter(1, {.limit = -kLong});
  EXPECT_EQ(status.code(), StatusCode::timeout);
  EXPECT_EQ(status.message(), "Rank 1 timed out in monitoredBarrier: rank 0 has not passed it after -60000 ms");
}

TEST(MonitoredBarrier, SaysThatTheStoreIsGoneWheneverItGoes) {
  // Rank 0: get, set; the others: set, get
  for (int operations = 0; operations < 2; ++operations) {
    for (const int rank : {0, 1}) {
      Group group(2);
      ASSERT_FALSE(group.enter(1 - rank, {.limit = rank == 0 ? -kLong : kShort}).ok());
      group.job.store(rank).faults.dies_after = operations;
      const Status status = group.enter(rank, {});
      EXPECT_EQ(status.code(), StatusCode::transport);
      EXPECT_EQ(status.message(), "the store is gone");
    }
  }
}

TEST(MonitoredBarrier, EndsAtOnceWhenWhoItWaitsForIsGone) {
  for (const int rank : {0, 1}) {
    FakeJob job(2);
    const GiveUp give_up = [] { throw StatusError(Status(StatusCode::peer_gone, "the other has died")); };
    const MonitoredBarrier barrier{job.store(rank), "g/barrier", rank, 2, 1, give_up};
    try {
      wait_for_all(barrier, kLong, false);
      ADD_FAILURE() << "nothing was thrown on rank " << rank;
    } catch (const StatusError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::peer_gone);
    }
  }
}

TEST(MonitoredBarrier, AKeyThatHoldsNoNumberIsAnError) {
  FakeJob job(2);
  job.store(1).set("g/barrier/1", "garbage");
  const MonitoredBarrier barrier{job.store(0), "g/barrier", 0, 2, 1};
  EXPECT_THROW(wait_for_all(barrier, kLong, false), StatusError);
}

}  // namespace
}  // namespace torch_ucc
