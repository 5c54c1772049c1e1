// The engine with many threads; run under TSan by ci/sanitize.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fakes/rig.h"
#include "progress/engine.h"

namespace torch_ucc {
namespace {

constexpr int kThreads = 4;

template <typename Body>
void in_threads(Body body) {
  std::vector<std::thread> threads;
  for (int id = 0; id < kThreads; ++id) {
    threads.emplace_back([&body, id] { body(id); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

// Written in start(), so only with the baton: no lock.
struct Starts {
  std::vector<std::vector<int>> by_thread = std::vector<std::vector<int>>(kThreads);

  FakeOp::Plan plan(int thread, int number, int polls) {
    return {.polls = polls,
            .on_start = [this, thread, number] { by_thread[static_cast<std::size_t>(thread)].push_back(number); }};
  }
  void expect_in_order(int count) const {
    for (const auto& numbers : by_thread) {
      ASSERT_EQ(numbers.size(), static_cast<std::size_t>(count));
      for (int i = 0; i < count; ++i) {
        ASSERT_EQ(numbers[static_cast<std::size_t>(i)], i);
      }
    }
  }
};

TEST(EngineThreads, OperationsOfAThreadStartInItsOrderAfterTheBatonWasTaken) {
  constexpr int kOps = 200;
  Rig rig;
  Starts starts;
  std::vector<std::vector<std::shared_ptr<FakeOp>>> ops(kThreads);
  BatonHolder holder(rig.engine);
  in_threads([&](int id) {
    for (int i = 0; i < kOps; ++i) {
      ops[static_cast<std::size_t>(id)].push_back(rig.post(starts.plan(id, i, 1 + i % 3), Follow::leaves));
    }
  });
  holder.release();
  for (const auto& of_thread : ops) {
    for (const auto& op : of_thread) {
      ASSERT_TRUE(rig.wait(*op));
    }
  }
  starts.expect_in_order(kOps);
}

TEST(EngineThreads, OperationsOfAThreadStartInItsOrderWhileAllContend) {
  constexpr int kOps = 1000;
  Rig rig;
  Starts starts;
  in_threads([&](int id) {
    std::vector<std::shared_ptr<FakeOp>> mine;
    for (int i = 0; i < kOps; ++i) {
      mine.push_back(rig.post(starts.plan(id, i, 1 + (i * 7) % 40), Follow::leaves));
    }
    for (const auto& op : mine) {
      ASSERT_TRUE(rig.wait(*op));
    }
  });
  starts.expect_in_order(kOps);
  EXPECT_EQ(rig.engine.outstanding(), 0U);
}

// Posts, waits with and without patience, callbacks, queries and results at once.
TEST(EngineThreads, Stress) {
  constexpr int kRounds = 400;
  Rig rig;
  std::atomic<int> callbacks{0};
  std::atomic<int> finished{0};
  in_threads([&](int id) {
    std::vector<std::shared_ptr<FakeOp>> kept;
    for (int i = 0; i < kRounds; ++i) {
      const auto op = make_op({.polls = (i * 13 + id) % 60, .advances = i % 7, .is_announced = i % 2 == 0, .finish = [&finished] {
                                 finished.fetch_add(1);
                                 return Status();
                               }});
      op->completion().on_done([&callbacks] { callbacks.fetch_add(1); });
      rig.engine.post(op, i % 3 == 0 ? Follow::leaves : Follow::waits);
      if (i % 5 == 0) {
        rig.engine.wait(*op, Deadline::after(microseconds(50)));
      }
      rig.engine.settled(*op);
      if (i % 2 == 0) {
        ASSERT_TRUE(rig.wait(*op));
        ASSERT_TRUE(op->completion().status().ok());
      } else {
        kept.push_back(op);
      }
    }
    for (const auto& op : kept) {
      ASSERT_TRUE(rig.wait(*op));
    }
  });
  EXPECT_EQ(finished.load(), kThreads * kRounds);
  // Delivery of an operation another thread drove may still run its callback.
  rig.engine.stop_background();
  EXPECT_EQ(callbacks.load(), kThreads * kRounds);
}

TEST(EngineThreads, ManyWaitForTheSameOperation) {
  constexpr int kRounds = 100;
  Rig rig;
  for (int i = 0; i < kRounds; ++i) {
    const auto op = rig.post({.polls = i % 2 == 0 ? 200 : 20});
    in_threads([&](int) { ASSERT_TRUE(rig.wait(*op)); });
    ASSERT_EQ(op->finishes(), 1);
  }
}

TEST(EngineThreads, ClosingWhileOthersPostEndsEverything) {
  constexpr int kRounds = 30;
  for (int round = 0; round < kRounds; ++round) {
    Rig rig;
    std::atomic<int> posted{0};
    in_threads([&](int id) {
      for (int i = 0; i < 20; ++i) {
        const auto op = rig.post({.polls = i % 4 == 0 ? FakeOp::kNever : 30}, i % 2 == 0 ? Follow::leaves : Follow::waits);
        if (posted.fetch_add(1) == 30 || (id == 0 && i == 19)) {
          rig.engine.fail(Status(StatusCode::closed, "aborted"));
        }
        if (i % 4 == 0 && !rig.engine.failed()) {
          rig.engine.wait(*op, Deadline::after(microseconds(20)));
          continue;
        }
        ASSERT_TRUE(rig.wait(*op));
      }
    });
  }
}

// --- what the background thread costs

struct Activity {
  long long cpu_ns = 0;
  long long switches = 0;  // of both kinds
  bool operator==(const Activity&) const = default;
};

// Of the engine's background thread, which this process has one of.
std::optional<Activity> background_activity() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    if (name != "ucc-progress") {
      continue;
    }
    Activity activity;
    std::ifstream(task.path() / "schedstat") >> activity.cpu_ns;
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      if (word == "voluntary_ctxt_switches:" || word == "nonvoluntary_ctxt_switches:") {
        long long count = 0;
        status >> count;
        activity.switches += count;
      }
    }
    return activity;
  }
  return std::nullopt;
}

// Half a second in which the thread did not run at all. A thread that polls never has one.
bool comes_to_rest() {
  const Deadline limit = hard_limit();
  while (!limit.passed()) {
    const auto before = background_activity();
    std::this_thread::sleep_for(milliseconds(500));
    if (before && before->switches > 0 && before == background_activity()) {
      return true;
    }
  }
  return false;
}

TEST(EngineThreads, AnIdleEngineUsesNoProcessor) {
  Rig rig;
  EXPECT_TRUE(comes_to_rest()) << "before the first operation";
  const auto op = rig.post({.polls = 500}, Follow::leaves);
  ASSERT_TRUE(ends_by_itself(*op));
  EXPECT_TRUE(comes_to_rest()) << "after the last operation";
}

TEST(EngineThreads, BesideACallerWhoNeverLeavesItAnythingTheBackgroundThreadRests) {
  Rig rig;
  const auto left = rig.post({.polls = 500}, Follow::leaves);  // it is awake
  ASSERT_TRUE(ends_by_itself(*left));
  std::atomic<bool> over{false};
  const auto take_a_while = [] {
    const Deadline end = Deadline::after(microseconds(20));
    while (!end.passed()) {
    }
  };
  std::thread caller([&] {
    while (!over.load()) {
      // It is there to be seen for a while
      rig.engine.post_and_wait(make_op({.on_start = take_a_while}), hard_limit());
    }
  });
  EXPECT_TRUE(comes_to_rest());
  over.store(true);
  caller.join();
}

}  // namespace
}  // namespace torch_ucc
