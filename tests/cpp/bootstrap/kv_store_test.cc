#include "bootstrap/kv_store.h"

#include <gtest/gtest.h>

#include <thread>

#include "fakes/fake_kv_store.h"
#include "fakes/limits.h"

namespace torch_ucc {
namespace {

TEST(GetBy, ReturnsWhatIsThereWithOneOperation) {
  FakeKvServer server;
  FakeKvStore store(server);
  store.set("key", "value");
  EXPECT_EQ(get_by(store, "key", hard_limit(), "rank 0"), "value");
  EXPECT_EQ(store.counts.get, 1);
}

TEST(GetBy, WaitsForWhatComesLater) {
  FakeKvServer server;
  FakeKvStore store(server);
  std::thread other([&server] {
    std::this_thread::sleep_for(milliseconds(5));
    server.set("key", "value");
  });
  EXPECT_EQ(get_by(store, "key", hard_limit(), "rank 0"), "value");
  other.join();
}

TEST(GetBy, NamesWhatItWaitedForWhenTheDeadlinePasses) {
  FakeKvServer server;
  FakeKvStore store(server);
  try {
    get_by(store, "key", Deadline::after(milliseconds(2)), "the team id of rank 0");
    FAIL() << "nothing was thrown";
  } catch (const StatusError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::timeout);
    EXPECT_STREQ(error.what(), "timed out waiting for the team id of rank 0");
  }
}

TEST(GetBy, LooksOnceEvenIfTheDeadlineHasPassed) {
  FakeKvServer server;
  FakeKvStore store(server);
  store.set("key", "value");
  EXPECT_EQ(get_by(store, "key", Deadline::after(milliseconds(0)), "rank 0"), "value");
}

TEST(GetBy, DoesNotHideADeadStore) {
  FakeKvServer server;
  FakeKvStore store(server);
  store.faults.dies_after = 0;
  EXPECT_THROW(get_by(store, "key", hard_limit(), "rank 0"), StatusError);
}

TEST(GetBy, EndsWhenItIsToldThatNothingCanCome) {
  FakeKvServer server;
  FakeKvStore store(server);
  int looks = 0;
  const GiveUp give_up = [&] {
    if (++looks == 3) {
      throw StatusError(Status(StatusCode::peer_gone, "rank 0 has died"));
    }
  };
  try {
    get_by(store, "key", hard_limit(), "rank 0", give_up);
    FAIL() << "nothing was thrown";
  } catch (const StatusError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::peer_gone);
  }
}

TEST(NumberIn, ReadsWhatAnotherRankWrote) {
  EXPECT_EQ(number_in("42", "the id"), 42);
  EXPECT_EQ(number_in("-1", "the id"), -1);
}

TEST(NumberIn, SaysWhatIsNoNumber) {
  for (const char* const value : {"", "x", "4x", " 4", "99999999999999999999"}) {
    try {
      number_in(value, "the id of group 'a'");
      FAIL() << "nothing was thrown for '" << value << "'";
    } catch (const StatusError& error) {
      EXPECT_EQ(error.status().code(), StatusCode::transport);
      EXPECT_EQ(std::string(error.what()),
                "the id of group 'a' in the store is '" + std::string(value) + "', which is not a number");
    }
  }
}

}  // namespace
}  // namespace torch_ucc
