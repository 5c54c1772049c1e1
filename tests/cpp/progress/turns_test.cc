#include "progress/turns.h"

#include <gtest/gtest.h>

#include "fakes/fake_transport.h"
#include "fakes/limits.h"
#include "progress/engine.h"

namespace torch_ucc {
namespace {

TEST(Turns, ServeTheTicketsInTheOrderInWhichTheyWereTaken) {
  FakeTransport transport;
  Engine engine(transport, {});
  EXPECT_TRUE(engine.with_baton(hard_limit(), [](LoopToken& token) {
    Turns turns;
    const std::uint64_t first = turns.take(token);
    const std::uint64_t second = turns.take(token);
    EXPECT_TRUE(turns.serves(token, first));
    EXPECT_FALSE(turns.serves(token, second));
    turns.pass(token);
    EXPECT_FALSE(turns.serves(token, first));
    EXPECT_TRUE(turns.serves(token, second));
    turns.pass(token);
    EXPECT_TRUE(turns.serves(token, turns.take(token)));
  }));
}

}  // namespace
}  // namespace torch_ucc
