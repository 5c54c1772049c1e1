#include "progress/loss.h"

#include <gtest/gtest.h>

namespace torch_ucc {
namespace {

constexpr milliseconds kLong{100};

struct Looks {
  Clock::time_point now = Clock::now();
  Quiet quiet;

  // So many looks, each a while after the last; whether the last one found that it was quiet.
  bool look(int times, milliseconds each) {
    bool lasts = false;
    for (int i = 0; i < times; ++i) {
      now += each;
      lasts = quiet.lasts(now, kLong);
    }
    return lasts;
  }
};

TEST(Quiet, LastsOnceNothingHasArrivedForLong) {
  Looks looks;
  EXPECT_FALSE(looks.look(100, milliseconds(1)));
  EXPECT_TRUE(looks.look(2, milliseconds(1)));
}

TEST(Quiet, BeginsAnewWhenSomethingArrives) {
  Looks looks;
  EXPECT_FALSE(looks.look(90, milliseconds(1)));
  ++looks.quiet.advances;
  EXPECT_FALSE(looks.look(90, milliseconds(1)));
  EXPECT_TRUE(looks.look(20, milliseconds(1)));
}

// A process that did not run for a while has not looked: what arrived meanwhile is seen first.
TEST(Quiet, IsNotConcludedFromAFewLooks) {
  Looks looks;
  EXPECT_FALSE(looks.look(10, milliseconds(1000)));
  EXPECT_TRUE(looks.look(100, milliseconds(1000)));
}

TEST(Quiet, CountsALookThatIsAskedForSeveralOperationsOnce) {
  Looks looks;
  for (int i = 0; i < 10; ++i) {
    looks.now += kLong;
    for (int operation = 0; operation < 100; ++operation) {
      EXPECT_FALSE(looks.quiet.lasts(looks.now, kLong));
    }
  }
}

TEST(Loss, KnowsWhatTheMemberHasNotCalled) {
  constexpr std::uint64_t kWrap = std::uint64_t{1} << 32U;
  EXPECT_TRUE((Loss{0, {}, 7}).has_not_called(8));
  EXPECT_FALSE((Loss{0, {}, 7}).has_not_called(7));
  EXPECT_FALSE((Loss{0, {}, Loss::kUnknown}).has_not_called(8));
  EXPECT_FALSE((Loss{0, {}, 7}).has_not_called(kWrap + 7)) << "only the lower 32 bits are known";
  EXPECT_TRUE((Loss{0, {}, kWrap - 1}).has_not_called(kWrap)) << "they begin anew";
}

}  // namespace
}  // namespace torch_ucc
