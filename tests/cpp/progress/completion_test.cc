#include "progress/completion.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace torch_ucc {
namespace {

TEST(Completion, EndsOnceWithTheFirstStatus) {
  Completion completion;
  EXPECT_FALSE(completion.done());
  EXPECT_TRUE(completion.complete(Status(StatusCode::timeout, "first")));
  EXPECT_FALSE(completion.complete(Status()));
  EXPECT_TRUE(completion.done());
  EXPECT_EQ(completion.status().message(), "first");
}

TEST(Completion, CallbackRunsOnceWhetherLeftBeforeOrAfterTheEnd) {
  Completion completion;
  int before = 0;
  int after = 0;
  completion.on_done([&before] { ++before; });
  EXPECT_EQ(before, 0);
  completion.complete({});
  completion.complete({});
  EXPECT_EQ(before, 1);
  completion.on_done([&after] { ++after; });
  EXPECT_EQ(after, 1);
  EXPECT_EQ(before, 1);
}

TEST(Completion, CallbacksRunInTheOrderTheyWereLeftAndSeeTheEnd) {
  Completion completion;
  std::string order;
  completion.on_done([&order, &completion] { order += completion.done() ? "a" : "?"; });
  completion.on_done([&order] { order += "b"; });
  completion.complete({});
  EXPECT_EQ(order, "ab");
}

TEST(Completion, CallbackMayUseTheCompletion) {
  Completion completion;
  int runs = 0;
  completion.on_done([&completion, &runs] {
    EXPECT_TRUE(completion.done());
    completion.on_done([&runs] { ++runs; });
  });
  completion.complete({});
  EXPECT_EQ(runs, 1);
}

// Everybody at once: one thread wins, all see its status, every callback runs once.
TEST(Completion, RacesHaveOneWinner) {
  constexpr int kRounds = 300;
  constexpr int kThreads = 3;
  for (int round = 0; round < kRounds; ++round) {
    Completion completion;
    std::atomic<int> winner{-1};
    std::atomic<int> winners{0};
    std::atomic<int> callbacks{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> threads;
    for (int id = 0; id < kThreads; ++id) {
      threads.emplace_back([&, id] {
        while (!go.load()) {
        }
        completion.on_done([&callbacks] { callbacks.fetch_add(1); });
        if (completion.complete(Status(StatusCode::internal, std::to_string(id)))) {
          winner.store(id);
          winners.fetch_add(1);
        }
      });
      threads.emplace_back([&] {
        while (!go.load()) {
        }
        while (!completion.done()) {
        }
        EXPECT_FALSE(completion.status().ok());
      });
    }
    go.store(true);
    for (auto& thread : threads) {
      thread.join();
    }
    ASSERT_EQ(winners.load(), 1);
    ASSERT_EQ(completion.status().message(), std::to_string(winner.load()));
    ASSERT_EQ(callbacks.load(), kThreads);
  }
}

}  // namespace
}  // namespace torch_ucc
