#include "bootstrap/peer_record.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include "base/status.h"

namespace torch_ucc {
namespace {

PeerRecord record(const std::string& host, long pid, NamedValues agreed = {}) {
  return {.host = host,
          .host_id = "id of " + host,
          .nonce = "nonce",
          .bell = "bell",
          .arena = "arena",
          .cores = "0-1,",
          .recorder = "recorder",
          .messages = "ucx",
          .pid = pid,
          .agreed = std::move(agreed)};
}

void expect_equal(const PeerRecord& a, const PeerRecord& b) {
  EXPECT_EQ(a.host, b.host);
  EXPECT_EQ(a.host_id, b.host_id);
  EXPECT_EQ(a.nonce, b.nonce);
  EXPECT_EQ(a.bell, b.bell);
  EXPECT_EQ(a.arena, b.arena);
  EXPECT_EQ(a.cores, b.cores);
  EXPECT_EQ(a.recorder, b.recorder);
  EXPECT_EQ(a.messages, b.messages);
  EXPECT_EQ(a.pid, b.pid);
  EXPECT_EQ(a.agreed, b.agreed);
}

// What check_peers() says, on whichever rank; ok if it throws nothing.
Status verdict(const std::vector<PeerRecord>& peers) {
  try {
    check_peers("g", peers);
    return {};
  } catch (const StatusError& error) {
    return error.status();
  }
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(PeerRecord, SurvivesTheStore) {
  for (const PeerRecord& sent : {record("node1", 4711, {{"UCC library", "1.9.0"}, {"UCC_TLS", "ucp,self"}, {"empty", ""}}),
                                 record("", 1), record("node=2;\n\xc3\xa4", 2147483647L, {{"", "anonymous"}})}) {
    expect_equal(PeerRecord::decode(sent.encode()), sent);
  }
}

TEST(PeerRecord, OfThisProcess) {
  const PeerRecord here = PeerRecord::here({{"a", "b"}});
  EXPECT_FALSE(here.host.empty());
  EXPECT_FALSE(here.host_id.empty());
  EXPECT_FALSE(here.cores.empty());
  EXPECT_EQ(here.pid, ::getpid());
  EXPECT_EQ(here.agreed, (NamedValues{{"a", "b"}}));
  const PeerRecord again = PeerRecord::here({});
  EXPECT_EQ(again.host_id, here.host_id);
  EXPECT_NE(again.nonce, here.nonce);
  expect_equal(PeerRecord::decode(here.encode()), here);
}

TEST(PeerRecord, RefusesWhatItDidNotWrite) {
  const std::string good = record("node1", 4711, {{"a", "b"}}).encode();
  std::string without_pid = good;
  without_pid.replace(without_pid.find("4711"), 4, "many");
  std::string two_pids = good;
  two_pids.replace(two_pids.find("4711"), 4, "47 1");
  for (const std::string& text :
       {std::string(), std::string("\x1e"), std::string("\x1f"), std::string("\x1f\x1e"), std::string("host\x1fn\x1e"),
        good.substr(1), good.substr(0, good.size() - 1), good + "x", std::string("\0\0\0", 3), without_pid, two_pids}) {
    EXPECT_THROW(PeerRecord::decode(text), StatusError) << testing::PrintToString(text);
  }
}

// Whatever the bytes: a StatusError, or a record that says the same when it is sent again.
TEST(PeerRecord, DecodesRandomBytesOrThrows) {
  std::mt19937 random(20240229);
  const std::string good = record("node1", 4711, {{"UCC_TLS", "ucp"}, {"segment_bytes", "1048576"}}).encode();
  const std::string likely =
      "\x1e\x1f"
      "0ahostnoncepid_";
  int refused = 0;
  constexpr int kTries = 20000;
  for (int i = 0; i < kTries; ++i) {
    std::string text = good;
    if (i % 2 == 0) {
      text.assign(random() % 80, '\0');
      for (char& byte : text) {
        byte = i % 4 == 0 ? likely[random() % likely.size()] : static_cast<char>(random());
      }
    } else {
      for (unsigned changes = 1 + random() % 4; changes > 0; --changes) {
        text[random() % text.size()] = i % 4 == 1 ? likely[random() % likely.size()] : static_cast<char>(random());
      }
    }
    try {
      const PeerRecord decoded = PeerRecord::decode(text);
      expect_equal(PeerRecord::decode(decoded.encode()), decoded);
    } catch (const StatusError& error) {
      ASSERT_EQ(error.status().code(), StatusCode::transport);
      ++refused;
    }
  }
  EXPECT_GT(refused, kTries / 2);  // all that is not a change within a value
}

TEST(CheckPeers, AcceptsRanksThatAgree) {
  const NamedValues agreed = {{"UCC_TLS", "ucp"}};
  const std::vector<PeerRecord> peers = {record("node1", 1, agreed), record("node1", 2, agreed), record("node2", 1, agreed)};
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(verdict(peers).ok());
  }
}

TEST(CheckPeers, NamesTheDifferenceOnBothSides) {
  const NamedValues usual = {{"UCC library", "1.9.0"}, {"UCC_TLS", "ucp"}};
  const std::vector<PeerRecord> peers = {record("node1", 1, usual), record("node1", 2, usual),
                                         record("node2", 3, {{"UCC library", "1.9.0"}, {"UCC_TLS", "self"}})};
  const Status status = verdict(peers);
  EXPECT_EQ(status.code(), StatusCode::invalid);
  EXPECT_TRUE(contains(status.message(), "the ranks of group 'g' have")) << status.message();
  EXPECT_TRUE(contains(status.message(), "UCC_TLS: 'ucp' on rank 0 (node1), 'self' on rank 2 (node2)")) << status.message();
  EXPECT_FALSE(contains(status.message(), "UCC library")) << status.message();
}

TEST(CheckPeers, NamesWhatOneSideHasNotSet) {
  const std::vector<PeerRecord> peers = {record("node1", 1), record("node2", 2, {{"UCC_TLS", ""}})};
  EXPECT_TRUE(contains(verdict(peers).message(), "UCC_TLS: not set on rank 0 (node1), '' on rank 1 (node2)"));
}

TEST(CheckPeers, RefusesTwoProcessesThatUccWouldTakeForOne) {
  const std::vector<PeerRecord> peers = {record("node1", 17), record("node2", 17), record("node1", 17)};
  const Status status = verdict(peers);
  EXPECT_EQ(status.code(), StatusCode::invalid);
  EXPECT_TRUE(contains(status.message(), "ranks 0 and 2 run on one machine (node1) with the same process id 17"))
      << status.message();
}

TEST(RanksOnCores, CountsByMachineNotByName) {
  std::vector<PeerRecord> peers = {record("pod-a", 1), record("pod-b", 2), record("node2", 3)};
  peers[1].host_id = peers[0].host_id;  // two containers of one machine
  EXPECT_EQ(ranks_on_cores(peers, 0), 2);
  EXPECT_EQ(ranks_on_cores(peers, 1), 2);
  EXPECT_EQ(ranks_on_cores(peers, 2), 1);
}

TEST(RanksOnCores, WhoIsKeptToOthersSharesNone) {
  std::vector<PeerRecord> peers = {record("node1", 1), record("node1", 2), record("node1", 3), record("node2", 4)};
  peers[1].cores = "2-3,";
  EXPECT_EQ(ranks_on_cores(peers, 0), 2);
  EXPECT_EQ(ranks_on_cores(peers, 1), 1);
  EXPECT_EQ(ranks_on_cores(peers, 2), 2);
}

TEST(Neighbourhood, IsThatOfHostAndPidNamespace) {
  PeerRecord first;
  first.host_id = "boot";
  first.nonce = "1";
  first.bell = "4026531836:10:3:77";
  PeerRecord second = first;
  second.bell = "4026531836:11:4:78";
  EXPECT_EQ(first.neighbourhood(), second.neighbourhood());
  second.bell = "4026532000:11:4:78";
  EXPECT_NE(first.neighbourhood(), second.neighbourhood());
  second = first;
  second.host_id = "other boot";
  EXPECT_NE(first.neighbourhood(), second.neighbourhood());
  // Who has no bell is seen by nobody.
  first.bell = second.bell = "";
  second.nonce = "2";
  EXPECT_NE(first.neighbourhood(), second.neighbourhood());
}

}  // namespace
}  // namespace torch_ucc
