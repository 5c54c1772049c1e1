#include "liveness/life_lines.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <functional>
#include <memory>
#include <string>

#include "fakes/limits.h"

namespace torch_ucc {
namespace {

LineAddress address_of(const LifeLines& lines) {
  LineAddress address = LineAddress::decode(lines.address());
  address.hosts = "127.0.0.1";
  return address;
}

// Both ends in one thread, turn by turn.
struct Rig {
  std::unique_ptr<LifeLines> to = std::make_unique<LifeLines>(1, 8, 1);
  std::unique_ptr<LifeLines> from = std::make_unique<LifeLines>(0, 8, 0);
  std::vector<Notice> heard_to;
  std::vector<Notice> heard_from;

  bool until(const std::function<bool()>& done) {
    for (const Deadline limit = hard_limit(); !done();) {
      if (limit.passed()) {
        return false;
      }
      serve(to, heard_to);
      serve(from, heard_from);
      ::usleep(200);
    }
    return true;
  }

  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      serve(to, heard_to);
      serve(from, heard_from);
      ::usleep(200);
    }
  }

  void connect() {
    from->connect(1, address_of(*to));
    ASSERT_TRUE(until([&] { return from->unsettled() == 0; }));
    ASSERT_TRUE(from->failed().empty());
  }

 private:
  static void serve(const std::unique_ptr<LifeLines>& lines, std::vector<Notice>& heard) {
    if (lines != nullptr) {
      for (const Notice& notice : lines->serve()) {
        heard.push_back(notice);
      }
    }
  }
};

std::size_t listening(const LifeLines& lines) {
  std::vector<pollfd> polled;
  lines.add_to(polled);
  std::size_t count = 0;
  for (const pollfd& each : polled) {
    int value = 0;
    socklen_t size = sizeof(value);
    ::getsockopt(each.fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &size);
    count += value != 0 ? 1 : 0;
  }
  return count;
}

TEST(LifeLines, ListensUntilAllHaveCome) {
  Rig rig;
  EXPECT_EQ(listening(*rig.to), 1U);
  EXPECT_EQ(listening(*rig.from), 0U);  // nobody connects to it
  rig.connect();
  rig.rounds(2);
  EXPECT_EQ(listening(*rig.to), 0U);
}

TEST(LifeLines, CarriesNoticesBothWays) {
  Rig rig;
  rig.connect();
  rig.from->tell({5, Ending::died});
  rig.to->tell({6, Ending::unreachable});
  ASSERT_TRUE(rig.until([&] { return rig.heard_to.size() == 1 && rig.heard_from.size() == 1; }));
  EXPECT_EQ(rig.heard_to[0].peer, 5U);
  EXPECT_EQ(rig.heard_to[0].how, Ending::died);
  EXPECT_EQ(rig.heard_from[0].peer, 6U);
  EXPECT_EQ(rig.heard_from[0].how, Ending::unreachable);
}

TEST(LifeLines, TellsWhoseLineEnded) {
  Rig rig;
  rig.connect();
  rig.rounds(2);
  rig.from.reset();  // as when its process is killed
  ASSERT_TRUE(rig.until([&] { return !rig.heard_to.empty(); }));
  EXPECT_EQ(rig.heard_to[0].peer, 0U);
  EXPECT_EQ(rig.heard_to[0].how, Ending::died);
  rig.rounds(5);
  EXPECT_EQ(rig.heard_to.size(), 1U);
}

// The peer was stopped, for example. It still finds the greeting in its queue, and then the end of the line.
TEST(LifeLines, WhoeverStoppedWaitingForAnAnswerHasNotDied) {
  Rig rig;
  rig.from->connect(1, address_of(*rig.to), milliseconds(50));
  for (const Deadline limit = hard_limit(); rig.from->unsettled() != 0 && !limit.passed();) {
    rig.from->serve();
    ::usleep(200);
  }
  ASSERT_EQ(rig.from->failed().size(), 1U);
  rig.rounds(20);
  for (const Notice& notice : rig.heard_to) {
    EXPECT_EQ(notice.how, Ending::left);
  }
}

TEST(LifeLines, AFarewellIsHeardInsteadOfAnEnd) {
  Rig rig;
  rig.connect();
  rig.to->tell({3, Ending::died});  // not read by the one that goes
  rig.from->farewell(Ending::left);
  rig.from.reset();
  ASSERT_TRUE(rig.until([&] { return !rig.heard_to.empty(); }));
  EXPECT_EQ(rig.heard_to[0].how, Ending::left);
  rig.rounds(5);
  EXPECT_EQ(rig.heard_to.size(), 1U);
}

TEST(LifeLines, AManyNoticesArriveInOrder) {
  Rig rig;
  rig.connect();
  for (std::uint64_t i = 0; i < 5000; ++i) {
    rig.from->tell({2 + i % 6, Ending::died});
  }
  ASSERT_TRUE(rig.until([&] { return rig.heard_to.size() == 5000; }));
  for (std::uint64_t i = 0; i < 5000; ++i) {
    ASSERT_EQ(rig.heard_to[i].peer, 2 + i % 6);
  }
}

TEST(LifeLines, WithoutTheSecretThereIsNoLine) {
  Rig rig;
  LineAddress address = address_of(*rig.to);
  address.secret.knock[3] = static_cast<char>(address.secret.knock[3] + 1);
  rig.from->connect(1, address);
  ASSERT_TRUE(rig.until([&] { return rig.from->unsettled() == 0; }));
  EXPECT_EQ(rig.from->failed(), (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(listening(*rig.to), 1U);  // still for who knows it
  EXPECT_TRUE(rig.heard_to.empty());
}

TEST(LifeLines, AnAnswerWithoutTheSecretIsNoLineEither) {
  Rig rig;
  LineAddress address = address_of(*rig.to);
  address.secret.answer[3] = static_cast<char>(address.secret.answer[3] + 1);
  rig.from->connect(1, address);
  ASSERT_TRUE(rig.until([&] { return rig.from->unsettled() == 0; }));
  EXPECT_EQ(rig.from->failed(), (std::vector<std::uint64_t>{1}));
}

TEST(LifeLines, StrangersAreTurnedAwayAndDisturbNobody) {
  Rig rig;
  const LineAddress address = address_of(*rig.to);
  std::vector<Socket> strangers;
  for (int i = 0; i < 200; ++i) {
    strangers.push_back(Socket::connecting("127.0.0.1", address.port));
  }
  rig.rounds(5);
  for (const Socket& stranger : strangers) {
    constexpr std::string_view kRequest = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    ::send(stranger.get(), kRequest.data(), kRequest.size(), MSG_NOSIGNAL);
  }
  rig.connect();
  EXPECT_TRUE(rig.heard_to.empty());
}

TEST(LifeLines, StrangersThatStayWithoutAWordKeepNobodyOut) {
  Rig rig;
  const LineAddress address = address_of(*rig.to);
  std::vector<Socket> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(Socket::connecting("127.0.0.1", address.port));
    rig.rounds(1);
  }
  rig.connect();
  EXPECT_TRUE(rig.heard_to.empty());
}

TEST(LifeLines, TriesEachAddressAndTakesOne) {
  Rig rig;
  LineAddress address = address_of(*rig.to);
  address.hosts = "0.0.0.x 127.0.0.1 127.0.0.2 127.0.0.3";
  rig.from->connect(1, address);
  ASSERT_TRUE(rig.until([&] { return rig.from->unsettled() == 0; }));
  EXPECT_TRUE(rig.from->failed().empty());
  rig.rounds(20);
  EXPECT_TRUE(rig.heard_to.empty()) << "a way that was not taken was heard as an end";
  std::vector<pollfd> polled;
  rig.from->add_to(polled);
  EXPECT_EQ(polled.size(), 1U);
}

TEST(LifeLines, SaysWhoCannotBeReached) {
  Rig rig;
  LineAddress address = address_of(*rig.to);
  rig.to.reset();  // its port is closed
  rig.from->connect(1, address);
  ASSERT_TRUE(rig.until([&] { return rig.from->unsettled() == 0; }));
  address.hosts = "";
  rig.from->connect(2, address);
  EXPECT_EQ(rig.from->unsettled(), 0U);
  EXPECT_EQ(rig.from->failed(), (std::vector<std::uint64_t>{1, 2}));
}

// A visitor: what it sends, and what it has received until the connection ends or `count` bytes
// came.
std::string visit(LifeLines& lines, const std::string& sent, std::size_t count) {
  const LineAddress address = address_of(lines);
  const Socket socket = Socket::connecting(address.hosts, address.port);
  std::string received;
  bool written = false;
  for (const Deadline limit = hard_limit(); received.size() < count && !limit.passed();) {
    lines.serve();
    written = written || ::send(socket.get(), sent.data(), sent.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(sent.size());
    std::array<char, 4096> bytes{};
    const ssize_t got = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOTCONN)) {
      break;
    }
    received.append(bytes.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  }
  return received;
}

TEST(LifeLines, GivesAVisitorWithTheSecretAReport) {
  LifeLines lines(0, 8, 0, [](std::size_t recent) { return std::string(recent, 'r'); });
  const Secret secret = address_of(lines).secret;
  constexpr std::size_t kReport = 1 << 20U;  // more than the socket takes at once
  const std::string sent = Hello{secret.knock, Hello::kVisitor}.encode() + encode_number(kReport);
  for (int i = 0; i < 3; ++i) {  // it goes on to listen
    const std::size_t expected = Secret::kHalf + kNumberBytes + kReport;
    const std::string received = visit(lines, sent, expected);
    ASSERT_EQ(received.size(), expected);
    EXPECT_EQ(received.substr(0, Secret::kHalf), secret.answer);
    EXPECT_EQ(received.substr(Secret::kHalf, kNumberBytes), encode_number(kReport));
    EXPECT_EQ(received.substr(Secret::kHalf + kNumberBytes), std::string(kReport, 'r'));
  }
}

TEST(LifeLines, GivesNothingToAVisitorWithoutTheSecret) {
  LifeLines lines(0, 8, 0, [](std::size_t) { return std::string("a secret"); });
  const std::string sent = Hello{std::string(Secret::kHalf, 'x'), Hello::kVisitor}.encode() + encode_number(1);
  EXPECT_EQ(visit(lines, sent, 1), "");
}

TEST(LifeLines, TakesNoVisitorWhereThereIsNoReport) {
  LifeLines lines(0, 8, 1);
  const std::string sent = Hello{address_of(lines).secret.knock, Hello::kVisitor}.encode() + encode_number(1);
  EXPECT_EQ(visit(lines, sent, 1), "");
}

TEST(LifeLines, DoesNotTakeAVisitorForARank) {
  LifeLines lines(0, 8, 1, [](std::size_t) { return std::string("r"); });
  const std::string sent = Hello{address_of(lines).secret.knock, Hello::kVisitor}.encode() + encode_number(1);
  EXPECT_EQ(visit(lines, sent, Secret::kHalf + kNumberBytes + 1).size(), Secret::kHalf + kNumberBytes + 1);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(lines.serve().empty());  // its end is no news
    ::usleep(200);
  }
}

TEST(LifeLines, DoesNotSpinWithoutADescriptorForAVisitor) {
  LifeLines lines(0, 8, 0, [](std::size_t) { return std::string("r"); });
  const LineAddress address = address_of(lines);
  const Socket early = Socket::connecting(address.hosts, address.port);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int unused = ::dup(early.get());  // the lowest number that is free
  ::close(unused);
  const rlimit none{static_cast<rlim_t>(unused), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  for (const Deadline limit = hard_limit(); listening(lines) != 0 && !limit.passed();) {
    lines.serve();
    ::usleep(200);
  }
  const std::size_t listens = listening(lines);
  const Deadline next = lines.next();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(listens, 0U);
  EXPECT_LT(next.left(), milliseconds(1000));
  EXPECT_EQ(visit(lines, Hello{address.secret.knock, Hello::kVisitor}.encode() + encode_number(1), 25).size(), 25U);
}

TEST(LifeLines, ServesAVisitorOnce) {
  int reports = 0;
  LifeLines lines(0, 8, 0, [&](std::size_t) { return std::to_string(++reports); });
  const std::string sent = Hello{address_of(lines).secret.knock, Hello::kVisitor}.encode() + encode_number(1) + encode_number(1);
  EXPECT_EQ(visit(lines, sent, Secret::kHalf + kNumberBytes + 1).back(), '1');
  for (int i = 0; i < 50; ++i) {
    lines.serve();
  }
  EXPECT_EQ(reports, 1);
}

TEST(LifeLines, TwoRanksMayConnectToEachOther) {
  Rig rig;
  rig.from = std::make_unique<LifeLines>(0, 8, 1);
  rig.connect();
  rig.to->connect(0, address_of(*rig.from));
  ASSERT_TRUE(rig.until([&] { return rig.to->unsettled() == 0; }));
  EXPECT_TRUE(rig.to->failed().empty());
  rig.rounds(20);
  EXPECT_TRUE(rig.heard_to.empty());
  EXPECT_TRUE(rig.heard_from.empty());
}

TEST(LifeLines, TakesNoSecondLineOfARank) {
  Rig rig;
  rig.connect();
  const std::string sent = Hello{address_of(*rig.to).secret.knock, 0}.encode();
  EXPECT_EQ(visit(*rig.to, sent, 1), "");
  rig.rounds(20);
  EXPECT_TRUE(rig.heard_to.empty());  // the first line is still there
}

}  // namespace
}  // namespace torch_ucc
