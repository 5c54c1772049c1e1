#include "shm/arena.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "fakes/calls.h"
#include "fakes/child.h"
#include "fakes/limits.h"
#include "fakes/rig.h"
#include "fakes/survivors.h"
#include "shm/protocol_search.h"

namespace torch_ucc::shm {
namespace {

using Kind = Movement::Kind;

std::shared_ptr<Board> open(Arena& arena, std::uint16_t id, const std::vector<std::uint64_t>& positions, int rank) {
  return arena.open(id, positions, rank, {}, std::make_shared<FailureDomain>("group"));
}

// How much memory the kernel has given for an arena.
std::size_t memory_of(const std::string& address) {
  unsigned long long space = 0;
  int pid = 0;
  int file = 0;
  EXPECT_EQ(std::sscanf(address.c_str(), "%llu:%d:%d", &space, &pid, &file), 3);
  struct stat info {};
  EXPECT_EQ(::stat(("/proc/" + std::to_string(pid) + "/fd/" + std::to_string(file)).c_str(), &info), 0);
  return static_cast<std::size_t>(info.st_blocks) * 512;
}

std::string answer(const Arena& arena) {
  const std::optional<bool> common = arena.is_common();
  return common ? (*common ? "yes" : "no: " + arena.why_not()) : "not yet";
}

// --- among processes

// A process with an arena at a position, which does what its channel asks for.
class Member {
 public:
  static constexpr std::size_t kRanks = 3;

  explicit Member(std::uint64_t position)
      : child_([position](const ChildChannel& channel) { serve(position, channel); }), address_(child_.channel().receive()) {}

  const std::string& address() const { return address_; }
  std::string ask(const std::string& question) const { return child_.channel().ask(question); }
  void end() { child_.kill(); }

 private:
  static void serve(std::uint64_t position, const ChildChannel& channel) {
    Arena arena;
    channel.send(arena.address());
    std::shared_ptr<Board> board;
    for (std::string question = channel.receive(); !question.empty(); question = channel.receive()) {
      std::istringstream words(question);
      std::string word;
      std::uint64_t number = 0;
      words >> word >> number;
      if (word == "map") {  // the number is how many neighbours follow
        std::vector<Arena::Neighbour> neighbours(number);
        for (Arena::Neighbour& each : neighbours) {
          words >> each.position >> each.address;
          each.name = "rank " + std::to_string(each.position);
        }
        arena.map(position, neighbours);
      } else if (word == "open") {
        board = open(arena, static_cast<std::uint16_t>(number), {0, 1, 2}, static_cast<int>(position));
        channel.send(board == nullptr ? "null" : "board");
        continue;
      } else if (word == "enter") {
        std::memset(board->slot(number), static_cast<int>('0' + position), board->slot_bytes());
        board->enter(number);
      } else if (word == "read") {  // what all members have given in a step
        std::string seen;
        for (std::size_t rank = 0; rank < kRanks; ++rank) {
          const char* const slot = board->slot_of(rank, number);
          seen += board->has_entered(rank, number) && slot[0] == slot[board->slot_bytes() - 1] ? slot[0] : '-';
        }
        channel.send(seen);
        continue;
      }
      channel.send(answer(arena));
    }
  }

  Child child_;
  const std::string address_;
};

class ThreeProcesses : public ::testing::Test {
 protected:
  static constexpr std::size_t kRanks = Member::kRanks;

  void make() {
    for (std::uint64_t position = 0; position < kRanks; ++position) {
      members_.push_back(std::make_unique<Member>(position));
      ASSERT_FALSE(members_.back()->address().empty());
    }
  }
  // Tells a member the addresses of the others, but `instead` for the neighbour `odd`.
  std::string map(std::size_t rank, std::size_t odd = kRanks, const std::string& instead = "") {
    std::string question = "map " + std::to_string(kRanks - 1);
    for (std::size_t peer = 0; peer < kRanks; ++peer) {
      if (peer != rank) {
        question += " " + std::to_string(peer) + " " + (peer == odd ? instead : members_[peer]->address());
      }
    }
    return members_[rank]->ask(question);
  }
  std::string ask(std::size_t rank, const std::string& question) { return members_[rank]->ask(question); }

  std::vector<std::unique_ptr<Member>> members_;
};

TEST_F(ThreeProcesses, ReadWhatTheOthersWrite) {
  make();
  EXPECT_EQ(map(0), "not yet");
  EXPECT_EQ(map(1), "not yet");
  EXPECT_EQ(ask(0, "open 7"), "null") << "not all have mapped";
  EXPECT_EQ(map(2), "yes");
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(ask(rank, "common"), "yes");
    EXPECT_EQ(ask(rank, "open 7"), "board");
    EXPECT_EQ(ask(rank, "read 2"), "---");
  }
  ask(1, "enter 2");
  EXPECT_EQ(ask(0, "read 2"), "-1-");
  EXPECT_EQ(ask(2, "read 1"), "---");
  ask(0, "enter 2");
  ask(2, "enter 2");
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(ask(rank, "read 2"), "012");
    EXPECT_EQ(ask(rank, "open 8"), "board");
    EXPECT_EQ(ask(rank, "read 2"), "---") << "a group sees nothing of another one";
  }
}

TEST_F(ThreeProcesses, StillReadWhatAnEndedOneGave) {
  make();
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    map(rank);
  }
  EXPECT_EQ(ask(0, "open 7"), "board");
  EXPECT_EQ(ask(1, "open 7"), "board");
  ask(1, "enter 0");
  members_[1]->end();
  EXPECT_EQ(ask(0, "read 0"), "-1-");
}

// Whatever is wrong with the address that rank 1 has of rank 2, the answer is no for all.
TEST_F(ThreeProcesses, AgreeThatTheirMemoryIsNotCommon) {
  std::string ended;
  {
    const Member gone(2);
    ended = gone.address();
  }
  const SharedMemory shorter("shorter", 4096);
  for (int wrong = 0; wrong < 5; ++wrong) {
    members_.clear();
    make();
    const std::string good = members_[2]->address();
    const std::size_t key = good.rfind(':') + 1;
    const std::array<std::string, 5> addresses{"nonsense", ended, shorter.address(), good.substr(0, key) + "12345",
                                               members_[0]->address().substr(0, members_[0]->address().rfind(':') + 1) + "7"};
    const std::string reason = "no: the memory of rank 2 cannot be mapped here";
    const std::string other_reason = "no: another rank on this host cannot map the memory of all ranks there";
    EXPECT_EQ(map(0), "not yet");
    EXPECT_EQ(map(1, 2, addresses.at(static_cast<std::size_t>(wrong))), reason) << addresses.at(static_cast<std::size_t>(wrong));
    EXPECT_EQ(map(2), other_reason);
    EXPECT_EQ(ask(0, "common"), other_reason);
    EXPECT_EQ(ask(1, "common"), reason);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(ask(rank, "open 0"), "null");
    }
  }
}

// --- within one process

class TwoArenas : public ::testing::Test {
 protected:
  TwoArenas() {
    arenas_[0].map(10, {{20, arenas_[1].address(), "rank 1"}});
    arenas_[1].map(20, {{10, arenas_[0].address(), "rank 0"}});
  }
  std::shared_ptr<Board> open_at(std::size_t rank, std::uint16_t id) {
    return open(arenas_.at(rank), id, {10, 20}, static_cast<int>(rank));
  }
  std::size_t memory(std::size_t rank) const { return memory_of(arenas_.at(rank).address()); }
  // What a rank writes and reads in a few long steps.
  static void use(Board& board) {
    for (std::uint64_t step = 0; step < kDepth; ++step) {
      std::memset(board.slot(step), 1, board.slot_bytes());
      board.enter(step);
      board.has_entered(1 - board.rank(), step);
    }
  }
  static constexpr std::size_t kPage = 4096;

  std::array<Arena, 2> arenas_;
};

TEST_F(TwoArenas, OpenOnlyGroupsThatTheyCanHold) {
  ASSERT_EQ(arenas_[0].is_common(), std::optional(true));
  EXPECT_NE(open_at(0, 0), nullptr);
  EXPECT_NE(open_at(0, 65535), nullptr);
  EXPECT_EQ(open(arenas_[0], 0, {10, 30}, 0), nullptr) << "position 30 is no neighbour";
  EXPECT_EQ(open(arenas_[0], 0, {10, 20, 30}, 0), nullptr);
  const auto alone = open(arenas_[0], 3, {10}, 0);
  ASSERT_NE(alone, nullptr);
  EXPECT_EQ(alone->size(), 1U);
  const auto turned = open(arenas_[0], 4, {20, 10}, 1);
  ASSERT_NE(turned, nullptr);
  turned->enter(0);
  EXPECT_TRUE(open(arenas_[1], 4, {20, 10}, 0)->has_entered(1, 0));
}

TEST_F(TwoArenas, KeepTheLastGroupsWithinTheirMemory) {
  const auto mine = open_at(0, 32767);
  const auto peers = open_at(1, 32767);
  use(*mine);
  EXPECT_TRUE(peers->has_entered(0, kDepth - 1));
  EXPECT_EQ(peers->slot_of(0, kDepth - 1)[peers->slot_bytes() - 1], 1);
}

TEST_F(TwoArenas, AreReadOnlyForEachOther) {
  const auto mine = open_at(0, 0);
  EXPECT_DEATH(const_cast<char*>(mine->slot_of(1, 0))[0] = 1, "");
  EXPECT_DEATH(const_cast<Line&>(mine->line_of(1, 0)).entered.store(1), "");
  mine->slot(0)[0] = 1;
}

TEST_F(TwoArenas, TakeNoMemoryForGroupsThatAreIdle) {
  constexpr int kGroups = 1000;
  const std::size_t before = memory(0);
  EXPECT_LE(before, std::size_t{64} << 10U);
  std::vector<std::shared_ptr<Board>> boards;
  for (int id = 0; id < kGroups; ++id) {
    boards.push_back(open_at(0, static_cast<std::uint16_t>(id)));
    boards.push_back(open_at(1, static_cast<std::uint16_t>(id)));
    ASSERT_TRUE(boards[boards.size() - 2] && boards.back());
  }
  EXPECT_EQ(memory(0), before);
  // A group that has exchanged little data has touched one page of each rank. The kernel may also
  // have filled pages of the table of states.
  for (const auto& board : boards) {
    board->enter(0);
    board->has_entered(1 - board->rank(), 0);
    EXPECT_EQ(board->state_of(1 - board->rank()), State::open);
  }
  EXPECT_LE(memory(0), before + kGroups * kPage + (std::size_t{64} << 10U));
}

TEST_F(TwoArenas, GiveMemoryBackWhenBothHaveClosed) {
  const std::array first{open_at(0, 1), open_at(1, 1)};
  const std::array second{open_at(0, 2), open_at(1, 2)};
  const std::array unused{open_at(0, 3), open_at(1, 3)};
  const std::size_t before = memory(0);
  const std::size_t face = kPage + kDepth * first[0]->slot_bytes();
  // Pages of the table of states may be filled on the way.
  const std::size_t table = std::size_t{36} << 10U;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    use(*first.at(rank));
    use(*second.at(rank));
  }
  ASSERT_GE(memory(0), before + 2 * face);
  arenas_[0].close(1, first[0]);
  EXPECT_GE(memory(0), before + 2 * face) << "rank 1 may still read";
  EXPECT_TRUE(first[1]->has_entered(0, kDepth - 1));
  EXPECT_EQ(first[1]->slot_of(0, 0)[0], 1);
  arenas_[1].close(1, first[1]);
  EXPECT_LE(memory(1), before + face + table);
  arenas_[0].close(3, unused[0]);  // now rank 0 looks at its closed groups
  EXPECT_LE(memory(0), before + face + table);
  EXPECT_EQ(first[1]->slot_of(0, 0)[0], 0);
  // The other group is as it was.
  for (std::uint64_t step = 0; step < kDepth; ++step) {
    EXPECT_EQ(second[1]->line_of(0, step).entered.load(), step + 1);
    EXPECT_EQ(second[1]->slot_of(0, step)[0], 1);
    EXPECT_EQ(second[1]->slot_of(0, step)[second[1]->slot_bytes() - 1], 1);
  }
  arenas_[0].close(2, second[0]);
  arenas_[1].close(2, second[1]);
  arenas_[1].close(3, unused[1]);
  EXPECT_LE(memory(1), before + table);
}

TEST_F(TwoArenas, GiveMemoryBackOfAGroupThatHasFailedAtAPeer) {
  const std::array boards{open_at(0, 1), open_at(1, 1)};
  use(*boards[0]);
  const std::size_t used = memory(0);
  boards[1]->set_state(State::failed);
  arenas_[0].close(1, boards[0]);
  EXPECT_LE(memory(0), used - kDepth * boards[0]->slot_bytes());
}

TEST(ShmArena, HasSlotsThatGrowWithTheRanks) {
  for (std::size_t ranks = 1; ranks <= 256; ++ranks) {
    const std::size_t bytes = Arena::slot_bytes(ranks);
    EXPECT_EQ(bytes % 4096, 0U);
    EXPECT_GE(bytes, std::max(ranks * 2048, std::size_t{131072}));
    EXPECT_LT(bytes, std::max(ranks * 2048, std::size_t{262144}) + 4096);
  }
}

TEST(ShmArena, IsCommonIfItIsAlone) {
  Arena arena;
  arena.map(5, {});
  EXPECT_EQ(arena.is_common(), std::optional(true));
  EXPECT_NE(open(arena, 0, {5}, 0), nullptr);
  EXPECT_EQ(open(arena, 0, {6}, 0), nullptr);
}

// --- processes that are killed, or lie

// The boards of a group in memory that forked processes share.
struct SharedBoards {
  explicit SharedBoards(std::size_t ranks) {
    const std::size_t slot_bytes = World::slot_bytes(ranks);
    constexpr std::size_t kPage = 4096;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      memories.emplace_back("torch_ucc_test", 2 * kPage + kDepth * slot_bytes);
      char* const data = static_cast<char*>(memories.back().data());
      places.push_back({new (data + kPage) Face, data + 2 * kPage, new (data + 64) std::atomic<State>(State::open)});
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      boards.push_back(board(rank));
    }
  }
  std::shared_ptr<Board> board(std::size_t rank) const {
    return std::make_shared<Board>(places, static_cast<int>(rank), World::slot_bytes(places.size()), Bells{},
                                   std::make_shared<FailureDomain>("group"));
  }

  std::vector<SharedMemory> memories;
  std::vector<Board::Place> places;
  std::vector<std::shared_ptr<Board>> boards;
};

// Forks a process that makes the next transition of `rank`, and kills it after `steps`
// instructions, or when it has made the transition. Returns the number of instructions until then.
// `meanwhile` is called between instructions. Where the kernel lets no process trace another one,
// the process is killed before its first instruction.
std::size_t kill_in_transition(LoopToken& token, Rank& rank, std::size_t steps, const std::function<void()>& meanwhile) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    (void)std::raise(SIGSTOP);
    rank.advance(token);
    (void)std::raise(SIGSTOP);
    ::_exit(1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  std::size_t made = 0;
  while (made < steps && ::ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) == 0) {
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP) {
      EXPECT_TRUE(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
      break;
    }
    ++made;
    meanwhile();
  }
  ::kill(child, SIGKILL);
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return made;
}

class ShmProcesses : public ::testing::Test {
 protected:
  static constexpr std::size_t kRanks = 3;

  // Makes ranks of which `victim` has made `transitions`. The others are ahead of it as far as they
  // can be, or as little as possible.
  static std::unique_ptr<World> ranks_at(LoopToken& token, const Program& program, std::size_t victim, std::size_t transitions,
                                         bool others_ahead) {
    const auto shared = std::make_shared<SharedBoards>(kRanks);
    auto world = std::make_unique<World>(token, shared->boards, shared, program, make_real);
    Survivors others(token, *world, victim);
    for (std::size_t made = 0; made < transitions;) {
      if (others_ahead) {
        others.go_on();
      }
      if (world->rank(victim).advance(token)) {
        ++made;
        continue;
      }
      bool advanced = false;
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        advanced = (rank != victim && world->rank(rank).advance(token)) || advanced;
      }
      if (!advanced) {
        return nullptr;  // the victim has ended
      }
    }
    return world;
  }
  void with_baton(const std::function<void(LoopToken&)>& body) { ASSERT_TRUE(rig_.engine.with_baton(hard_limit(), body)); }

  Rig rig_;
};

TEST_F(ShmProcesses, EndInOrderWhereverOneIsKilled) {
  constexpr std::size_t kVictim = 1;
  constexpr std::size_t kKillsPerTransition = 6;
  // Limits the time of this test where each transition has many instructions, as under a sanitizer.
  constexpr std::size_t kMostInstructions = 120000;
  const Program program{{Kind::all_reduce, 8}, {Kind::broadcast, 300, kVictim}, {Kind::all_reduce, 300}};
  std::vector<std::pair<std::size_t, bool>> moments;
  std::size_t instructions = 0;
  std::size_t kills = 0;
  std::size_t waited = 0;
  with_baton([&](LoopToken& token) {
    for (std::size_t made = 0; ranks_at(token, program, kVictim, made, true) != nullptr; ++made) {
      moments.emplace_back(made, true);
      moments.emplace_back(made, false);
    }
    ASSERT_EQ(moments.size(), 2 * (3 + 5 + 7 + 1));
    std::mt19937 random(1);
    std::shuffle(moments.begin(), moments.end(), random);
    for (const auto& [made, others_ahead] : moments) {
      std::size_t length = ~std::size_t{0};  // of the transition, in instructions
      for (std::size_t i = 0; i <= kKillsPerTransition && instructions < kMostInstructions; ++i) {
        const std::unique_ptr<World> world = ranks_at(token, program, kVictim, made, others_ahead);
        ASSERT_NE(world, nullptr);
        Survivors survivors(token, *world, kVictim);
        if (world->rank(kVictim).all_done()) {
          break;
        }
        if (others_ahead) {
          survivors.go_on();
        }
        // The first process is let through, which shows the length.
        const std::size_t until = i == 0 ? length : (random() % kKillsPerTransition + (i - 1) * length) / kKillsPerTransition;
        const std::size_t stepped = kill_in_transition(token, world->rank(kVictim), until, [&] {
          if (i % 2 == 1) {
            survivors.go_on();  // they read while the process writes
          }
        });
        length = i == 0 ? stepped : length;
        instructions += stepped;
        ++kills;
        survivors.go_on();
        waited += survivors.waiting() != 0 ? 1 : 0;
        survivors.learn_of_the_end();
        survivors.expect_order();
        ASSERT_FALSE(HasFailure()) << "killed in transition " << made << " after " << stepped << " instructions";
      }
    }
  });
  EXPECT_GE(kills, 10U);
  EXPECT_GT(waited, 0U);
}

// Processes that write garbage to the faces of ranks 1 and 2, and in between what rank 0 expects.
class Liars {
 public:
  Liars() {
    for (std::size_t rank = 1; rank < kRanks; ++rank) {
      const pid_t parent = ::getpid();
      processes_.push_back(std::make_unique<Child>([this, rank, parent](const ChildChannel& /*channel*/) {
        for (std::mt19937 random(static_cast<std::mt19937::result_type>(rank)); ::getppid() == parent;) {
          lie(random, rank);
        }
      }));
    }
  }

  // Begins a round in which rank 0 calls what needs `bytes` of each peer. One word of `honesty` is
  // garbage.
  void begin(std::uint64_t bytes, std::uint32_t honesty) {
    plan_->bytes.store(bytes);
    plan_->honesty.store(honesty);
    for (const Board::Place& place : shared_.places) {
      for (Line& line : place.face->lines) {
        line.entered.store(0);
      }
    }
  }
  std::shared_ptr<Board> board() const { return shared_.board(0); }

  // What the processes do all the time.
  void lie(std::mt19937& random, std::size_t rank) const {
    const std::uint64_t bytes = plan_->bytes.load();
    const std::uint32_t honesty = plan_->honesty.load();
    const auto often = [&](std::uint64_t right) {
      const std::uint64_t garbage = random() * std::uint64_t{0x100000001};
      return random() % honesty != 0 ? right : garbage >> random() % 64U;
    };
    for (std::size_t which = 0; which < kDepth; ++which) {
      const Line& expected = shared_.places[0].face->lines.at(which);
      Line& line = shared_.places[rank].face->lines.at(which);
      line.call = often(expected.call);
      line.before = often(expected.before);
      line.bytes = often(bytes);
      line.steps = often(expected.steps);
      const std::size_t slot_bytes = World::slot_bytes(kRanks);
      for (std::size_t i = 0; i + sizeof(std::uint64_t) <= slot_bytes; i += sizeof(std::uint64_t)) {
        const std::uint64_t word = often(bytes);
        std::memcpy(shared_.places[rank].slots + which * slot_bytes + i, &word, sizeof(word));
      }
      line.entered.store(often(expected.entered.load()), std::memory_order_release);
    }
  }

 private:
  static constexpr std::size_t kRanks = 3;
  struct Plan {
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint32_t> honesty{1};
  };

  const SharedBoards shared_{kRanks};
  const SharedMemory control_{"torch_ucc_test", 4096};
  Plan* const plan_ = new (static_cast<char*>(control_.data()) + 64) Plan;
  std::vector<std::unique_ptr<Child>> processes_;
};

TEST_F(ShmProcesses, SurvivePeersThatWriteAnything) {
  constexpr std::array kKinds{Kind::barrier,    Kind::broadcast,  Kind::all_gather, Kind::gather,        Kind::scatter,
                              Kind::all_to_all, Kind::all_reduce, Kind::reduce,     Kind::reduce_scatter};
  constexpr std::array<std::uint32_t, 3> kHonesty{3, 40, 3000};
  Liars liars;
  std::array<std::size_t, kKinds.size()> ended{};
  std::array<std::size_t, kKinds.size()> refused{};
  with_baton([&](LoopToken& token) {
    std::mt19937 random(7);
    for (std::size_t round = 0; round < kKinds.size() * 150; ++round) {
      const std::size_t which = round % kKinds.size();
      const Kind kind = kKinds.at(which);
      const bool has_root = kind == Kind::broadcast || kind == Kind::gather || kind == Kind::scatter || kind == Kind::reduce;
      const Call call{kind, random() % 500, has_root ? random() % 2 : 0};
      liars.begin(kind == Kind::reduce_scatter ? call.bytes * kRanks : call.bytes,
                  kHonesty.at(round / kKinds.size() % kHonesty.size()));
      RealRank rank(token, liars.board(), {call});
      for (int turns = 0; turns < 200 && rank.goes_on(); ++turns) {
        rank.advance(token);
        liars.lie(random, 1);
        liars.lie(random, 2);
      }
      EXPECT_TRUE(rank.tensors(0).have_sources_as_given());
      if (rank.all_done()) {
        ++ended.at(which);
        continue;
      }
      if (rank.goes_on()) {
        rank.give_up(token);
      } else {
        const StatusCode code = rank.error().code();
        EXPECT_TRUE(code == StatusCode::mismatch || code == StatusCode::invalid) << rank.error().message();
        ++refused.at(which);
      }
      EXPECT_TRUE(rank.left_memory_alone());
    }
  });
  for (std::size_t which = 0; which < kKinds.size(); ++which) {
    EXPECT_GT(ended.at(which), 0U) << "kind " << which;
    EXPECT_GT(refused.at(which), 0U) << "kind " << which;
  }
}

}  // namespace
}  // namespace torch_ucc::shm
