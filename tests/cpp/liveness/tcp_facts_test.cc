#include "liveness/tcp_facts.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>

namespace torch_ucc {
namespace {

sockaddr_in address(const char* text) {
  sockaddr_in made{};
  made.sin_family = AF_INET;
  ::inet_pton(AF_INET, text, &made.sin_addr);
  return made;
}

// Connections between two addresses of the loopback device, as between two hosts.
struct Connection {
  Connection(const char* from, const char* to) {
    sockaddr_in there = address(to);
    socklen_t size = sizeof(there);
    listener = ::socket(AF_INET, SOCK_STREAM, 0);
    EXPECT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&there), size), 0);
    EXPECT_EQ(::listen(listener, 1), 0);
    EXPECT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&there), &size), 0);
    client = ::socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in here = address(from);
    EXPECT_EQ(::bind(client, reinterpret_cast<const sockaddr*>(&here), sizeof(here)), 0);
    EXPECT_EQ(::connect(client, reinterpret_cast<const sockaddr*>(&there), size), 0);
    port = there.sin_port;
  }
  ~Connection() {
    ::close(client);
    ::close(listener);
  }
  int listener = -1, client = -1;
  in_port_t port = 0;
};

// Ports to which the facts name a connection, each with INET_DIAG_INFO.
std::multiset<in_port_t> ports_in(std::string facts) {
  std::multiset<in_port_t> ports;
  auto left = static_cast<unsigned>(facts.size());
  for (auto* head = reinterpret_cast<nlmsghdr*>(facts.data()); NLMSG_OK(head, left); head = NLMSG_NEXT(head, left)) {
    EXPECT_EQ(head->nlmsg_type, SOCK_DIAG_BY_FAMILY);
    inet_diag_msg each{};
    std::memcpy(&each, NLMSG_DATA(head), sizeof(each));
    EXPECT_GT(head->nlmsg_len, sizeof(nlmsghdr) + sizeof(each) + 200);
    ports.insert(each.id.idiag_dport);
  }
  EXPECT_EQ(left, 0U);
  return ports;
}

TEST(TcpFacts, NamesConnectionsBetweenTwoAddresses) {
  const Connection between("127.0.0.1", "127.0.0.2");
  const Connection within("127.0.0.1", "127.0.0.1");
  const std::string facts = tcp_facts();
  if (facts.empty()) {
    GTEST_SKIP() << "this kernel tells nothing of connections";
  }
  const std::multiset<in_port_t> ports = ports_in(facts);
  EXPECT_EQ(ports.count(between.port), 1U);
  EXPECT_EQ(ports.count(within.port), 0U);
}

}  // namespace
}  // namespace torch_ucc
