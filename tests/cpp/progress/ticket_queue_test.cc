#include "progress/ticket_queue.h"

#include <gtest/gtest.h>

#include "fakes/fake_transport.h"
#include "fakes/limits.h"
#include "progress/engine.h"

namespace torch_ucc {
namespace {

TEST(TicketQueue, ServeTheTicketsInTheOrderInWhichTheyWereTaken) {
  FakeTransport transport;
  Engine engine(transport, {});
  EXPECT_TRUE(engine.with_baton(hard_limit(), [](LoopToken& token) {
    TicketQueue tickets;
    const std::uint64_t first = tickets.take(token);
    const std::uint64_t second = tickets.take(token);
    EXPECT_TRUE(tickets.serves(token, first));
    EXPECT_FALSE(tickets.serves(token, second));
    tickets.pass(token);
    EXPECT_FALSE(tickets.serves(token, first));
    EXPECT_TRUE(tickets.serves(token, second));
    tickets.pass(token);
    EXPECT_TRUE(tickets.serves(token, tickets.take(token)));
  }));
}

}  // namespace
}  // namespace torch_ucc
