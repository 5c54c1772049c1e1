#include "liveness/socket.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fakes/limits.h"

namespace torch_ucc {
namespace {

void wait_until(const Socket& socket, short what) {
  pollfd query{socket.get(), what, 0};
  ASSERT_EQ(::poll(&query, 1, 60000), 1);
}

struct Connected {
  Connected() : listening(Socket::listening()), client(Socket::connecting("127.0.0.1", listening.port())) {
    wait_until(listening, POLLIN);
    server = listening.accepted();
    wait_until(client, POLLOUT);
    EXPECT_TRUE(server);
  }
  Socket listening;
  Socket client;
  Socket server;
};

TEST(Socket, CarriesBytes) {
  const Connected pair;
  ASSERT_EQ(::send(pair.client.get(), "x", 1, 0), 1);
  wait_until(pair.server, POLLIN);
  char byte = 0;
  EXPECT_EQ(::recv(pair.server.get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 'x');
}

TEST(Socket, TakesIPv6WhereThereIsIPv6) {
  const Socket listening = Socket::listening();
  const Socket client = Socket::connecting("::1", listening.port());
  if (!client) {
    GTEST_SKIP() << "no IPv6 here";
  }
  wait_until(client, POLLOUT);
}

TEST(Socket, IsNoneForWhatIsNoAddress) {
  EXPECT_FALSE(Socket::connecting("a.name.that.would.be.looked.up", 1));
  EXPECT_FALSE(Socket::connecting("", 1));
}

TEST(Socket, AcceptsNoneIfNobodyCame) { EXPECT_FALSE(Socket::listening().accepted()); }

TEST(Socket, IsWatchedOver) {
  const Connected pair;
  pair.client.watch_over(milliseconds(3500));
  int value = 0;
  socklen_t size = sizeof(value);
  ASSERT_EQ(::getsockopt(pair.client.get(), SOL_SOCKET, SO_KEEPALIVE, &value, &size), 0);
  EXPECT_EQ(value, 1);
}

// A child that lives on must not hide that its parent was killed: here the parent's end is closed
// instead.
TEST(Socket, IsNotKeptByAForkedChild) {
  Connected pair;
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  pair.client = Socket();
  wait_until(pair.server, POLLIN);
  char byte = 0;
  EXPECT_EQ(::recv(pair.server.get(), &byte, 1, 0), 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(Socket, NamesOnlyAddressesThatOthersCanReach) {
  const std::string addresses = " " + own_addresses(8) + " ";
  EXPECT_EQ(addresses.find(" 127."), std::string::npos) << addresses;
  EXPECT_EQ(addresses.find(" ::1 "), std::string::npos) << addresses;
  EXPECT_EQ(own_addresses(0), "");
}

}  // namespace
}  // namespace torch_ucc
