#include "base/lease.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

namespace torch_ucc {
namespace {

bool revoke(MemoryLease& lease) {
  return lease.revoke([] {});
}

TEST(MemoryLease, IsUsedAgainAndAgain) {
  MemoryLease lease;
  for (int i = 0; i < 3; ++i) {
    const MemoryLease::Use use(lease);
    EXPECT_TRUE(use);
  }
}

TEST(MemoryLease, IsNotUsedOnceItWasRevoked) {
  MemoryLease lease;
  EXPECT_TRUE(revoke(lease));
  EXPECT_FALSE(MemoryLease::Use(lease));
  EXPECT_TRUE(revoke(lease)) << "a second revocation does no harm";
}

TEST(MemoryLease, IsNotRevokedOnceItWasSettled) {
  MemoryLease lease;
  {
    MemoryLease::Use use(lease);
    ASSERT_TRUE(use);
    use.settle();
  }
  bool looked = false;
  EXPECT_FALSE(lease.revoke([&] { looked = true; }));
  EXPECT_FALSE(looked);
}

TEST(MemoryLease, RevokingWaitsForTheUseThatIsUnderWay) {
  MemoryLease lease;
  std::optional<MemoryLease::Use> use(lease);
  ASSERT_TRUE(*use);
  std::atomic<bool> ended{false};
  std::atomic<bool> began{false};
  std::thread revoker([&] {
    began.store(true);
    EXPECT_TRUE(lease.revoke([&] { EXPECT_TRUE(ended.load()) << "the memory was still in use"; }));
  });
  while (!began.load()) {
    std::this_thread::yield();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ended.store(true);
  use.reset();
  revoker.join();
}

TEST(MemoryLease, OneThreadAtATimeUsesIt) {
  MemoryLease lease;
  int uses = 0;  // plain: the sanitizer sees two threads at once
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 1000; ++round) {
        const MemoryLease::Use use(lease);
        ASSERT_TRUE(use);
        ++uses;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(uses, 4000);
}

TEST(MemoryLease, OfManyThreadsThatRevokeItOneLooksAndAllReturnAfterwards) {
  MemoryLease lease;
  std::atomic<int> looks{0};
  std::vector<std::thread> revokers;
  for (int i = 0; i < 4; ++i) {
    revokers.emplace_back([&] {
      EXPECT_TRUE(lease.revoke([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        looks.fetch_add(1);
      }));
      EXPECT_EQ(looks.load(), 1);
    });
  }
  for (std::thread& revoker : revokers) {
    revoker.join();
  }
  lease.wait_until_revoked();
}

// One thread copies as often as it may, another takes the memory back: no copy is seen after that.
TEST(MemoryLease, NothingIsWrittenAfterItWasRevoked) {
  for (int round = 0; round < 200; ++round) {
    MemoryLease lease;
    std::atomic<int> writes{0};
    std::thread driver([&] {
      while (true) {
        const MemoryLease::Use use(lease);
        if (!use) {
          return;
        }
        writes.fetch_add(1, std::memory_order_relaxed);
      }
    });
    EXPECT_TRUE(revoke(lease));
    const int seen = writes.load();
    driver.join();
    EXPECT_EQ(writes.load(), seen);
  }
}

}  // namespace
}  // namespace torch_ucc
