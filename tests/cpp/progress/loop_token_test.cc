#include "progress/loop_token.h"

#include <gtest/gtest.h>

#include <thread>
#include <type_traits>

#include "fakes/fake_transport.h"
#include "fakes/limits.h"
#include "progress/engine.h"

namespace torch_ucc {
namespace {

static_assert(!std::is_default_constructible_v<LoopToken>, "only an engine makes one");
static_assert(!std::is_copy_constructible_v<LoopToken>, "a token must not outlive the hold of the baton");

TEST(LoopToken, IsFineInTheThreadThatHoldsTheBaton) {
  FakeTransport transport;
  Engine engine(transport, {});
  EXPECT_TRUE(engine.with_baton(hard_limit(), [](LoopToken& token) { token.check(); }));
}

#ifndef NDEBUG  // the check is an assert()
TEST(LoopTokenDeathTest, DiesInAnotherThread) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto lend_to_another_thread = [] {
    FakeTransport transport;
    Engine engine(transport, {});
    engine.with_baton(hard_limit(), [](LoopToken& token) { std::thread([&token] { token.check(); }).join(); });
  };
  EXPECT_DEATH(lend_to_another_thread(), "get_id");
}
#endif

}  // namespace
}  // namespace torch_ucc
