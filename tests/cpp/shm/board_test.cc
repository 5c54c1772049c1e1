#include "shm/board.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fakes/calls.h"
#include "fakes/faces.h"
#include "fakes/limits.h"
#include "fakes/rig.h"
#include "fakes/survivors.h"
#include "shm/protocol_search.h"

namespace torch_ucc::shm {
namespace {

using Kind = Movement::Kind;
using Rule = PlayedRank::Rule;

class ShmBoard : public ::testing::Test {
 protected:
  void with_baton(const std::function<void(LoopToken&)>& body) { ASSERT_TRUE(rig_.engine.with_baton(hard_limit(), body)); }

  Rig rig_;
};

// --- members

TEST_F(ShmBoard, ShowsAStepOnceItIsEntered) {
  const Faces faces(2);
  Board& mine = *faces.board(0);
  Board& peers = *faces.board(1);
  EXPECT_FALSE(peers.has_entered(0, 0));
  mine.enter(0);
  EXPECT_TRUE(peers.has_entered(0, 0));
  EXPECT_FALSE(peers.has_entered(0, 1));
  for (std::uint64_t step = 1; step <= 7; ++step) {
    mine.enter(step);
  }
  // Seen in the line of step 7, of which step 3 had the same line. Step 6 is seen in its own line.
  EXPECT_TRUE(peers.has_entered(0, 3));
  EXPECT_TRUE(peers.has_entered(0, 6));
  EXPECT_FALSE(peers.has_entered(0, 8));
}

TEST_F(ShmBoard, FreesASlotWhenAllPeersAreBehindItsStep) {
  const Faces faces(3);
  Board& mine = *faces.board(0);
  for (std::uint64_t step = 0; step < kDepth; ++step) {
    EXPECT_EQ(mine.reader_of_slot(step), 3U) << "a slot that was never used is free";
  }
  EXPECT_EQ(mine.reader_of_slot(kDepth), 1U);
  faces.board(1)->enter(0);
  EXPECT_EQ(mine.reader_of_slot(kDepth), 1U) << "the peer may still read step 0";
  faces.board(1)->enter(1);
  EXPECT_EQ(mine.reader_of_slot(kDepth), 2U);
  faces.board(2)->enter(0);
  faces.board(2)->enter(1);
  EXPECT_EQ(mine.reader_of_slot(kDepth), 3U);
  EXPECT_EQ(mine.reader_of_slot(kDepth + 1), 1U);
}

TEST_F(ShmBoard, HasTheFirstStateThatIsSet) {
  const Faces faces(2);
  EXPECT_EQ(faces.board(1)->state_of(0), State::open);
  faces.board(0)->set_state(State::failed);
  faces.board(0)->set_state(State::left);
  EXPECT_EQ(faces.board(1)->state_of(0), State::failed);
  EXPECT_FALSE(faces.board(0)->is_over());
  faces.board(1)->set_state(State::left);
  EXPECT_TRUE(faces.board(0)->is_over());
  EXPECT_TRUE(faces.board(1)->is_over());
}

TEST_F(ShmBoard, GivesLittleDataInTheLine) {
  const Faces faces(2, 256);
  Board& mine = *faces.board(0);
  const Board& peers = *faces.board(1);
  for (std::uint64_t step = 0; step < 2 * kDepth; ++step) {
    for (const std::size_t bytes : {std::size_t{0}, Line::kSmall, Line::kSmall + 1, std::size_t{256}}) {
      EXPECT_EQ(mine.given(step, bytes), peers.given_by(0, step, bytes));
      EXPECT_EQ(mine.given(step, bytes) == mine.slot(step), bytes > Line::kSmall);
    }
    EXPECT_EQ(mine.slot(step), peers.slot_of(0, step));
    EXPECT_EQ(&mine.line(step), &peers.line_of(0, step));
    EXPECT_EQ(mine.slot(step) - mine.slot(0), static_cast<std::ptrdiff_t>(step % kDepth * 256));
  }
}

// --- every order

// A slot has 128 bytes among two ranks and 192 bytes among three, so that a call has 1 to 4 steps.
const std::vector<std::pair<std::size_t, Program>> kPrograms{
    {2, {{Kind::broadcast, 500, 0}, {Kind::all_reduce, 8}, {Kind::broadcast, 200, 1}, {Kind::broadcast, 300, 1}}},
    {2, {{Kind::all_reduce, 300}, {Kind::gather, 300, 1, true}, {Kind::barrier}, {Kind::all_reduce, 200}}},
    {2, {{Kind::all_to_all, 150, 0, true}, {Kind::reduce, 200, 1}, {Kind::reduce_scatter, 200, 0, true}, {Kind::reduce, 20, 1}}},
    {2, {{Kind::scatter, 200, 1, true}, {Kind::all_gather, 200, 0, true}, {Kind::reduce, 40, 0}, {Kind::scatter, 100, 0}}},
    {2, {{Kind::gather, 400, 0}, {Kind::gather, 300, 0, true}, {Kind::broadcast, 400, 0}, {Kind::gather, 500, 1}}},
    {3, {{Kind::broadcast, 700, 0}, {Kind::all_reduce, 8}, {Kind::broadcast, 300, 2}}},
    {3, {{Kind::all_reduce, 400}, {Kind::gather, 300, 1, true}, {Kind::barrier}}},
    {3, {{Kind::all_to_all, 100, 0, true}, {Kind::reduce, 200, 2}, {Kind::reduce_scatter, 100, 0, true}}},
    {3, {{Kind::scatter, 100, 1, true}, {Kind::all_gather, 300, 0, true}, {Kind::reduce, 40, 0}}},
    {3, {{Kind::gather, 700, 0}, {Kind::broadcast, 300, 1}}},
    {3, {{Kind::scatter, 200, 2}, {Kind::reduce, 40, 0}, {Kind::gather, 10, 0}, {Kind::broadcast, 10, 2}}},
};

TEST_F(ShmBoard, EveryOrderOfTransitionsGivesTheRightResult) {
  with_baton([&](LoopToken& token) {
    std::uint64_t most_ahead = 0;
    for (const auto& [ranks, program] : kPrograms) {
      const Search::Findings found = Search(token, ranks, program).run();
      EXPECT_FALSE(found.has_fault()) << found.deadlocks << " deadlocks, " << found.wrong_results << " wrong results, "
                                      << found.errors << " errors, " << found.orders_that_matter
                                      << " orders that matter; the first after transitions of " << found.first;
      EXPECT_EQ(found.ends, 1U);
      EXPECT_GT(found.states, 50 * ranks);
      EXPECT_LE(found.most_ahead, kDepth - 1);
      most_ahead = std::max(most_ahead, found.most_ahead);
    }
    EXPECT_EQ(most_ahead, kDepth - 1) << "the programs must use all slots";
  });
}

// The search finds each rule that is wrong, and nothing else: a played rank with the right rule
// passes.
TEST_F(ShmBoard, OrdersOfRanksThatBreakARuleGiveFaults) {
  const Program program{{Kind::gather, 500, 0}, {Kind::broadcast, 300, 1}};
  with_baton([&](LoopToken& token) {
    const auto found = [&](std::size_t played, Rule rule) {
      return Search(token, 3, program, make_one_played(played, rule)).run();
    };
    for (std::size_t rank = 0; rank < 3; ++rank) {
      EXPECT_FALSE(found(rank, Rule::right).has_fault());
    }
    EXPECT_GT(found(1, Rule::overwrites).wrong_results, 0U);
    EXPECT_GE(found(1, Rule::overwrites).most_ahead, kDepth);
    EXPECT_GT(found(1, Rule::overwrites_early).orders_that_matter, 0U);
    EXPECT_EQ(found(1, Rule::overwrites_early).most_ahead, kDepth);
    EXPECT_GT(found(0, Rule::waits_for_nobody).wrong_results, 0U);
    EXPECT_GT(found(0, Rule::misses_the_last).wrong_results, 0U);
    EXPECT_GT(found(2, Rule::enters_first).wrong_results, 0U);
    EXPECT_GT(Search(token, 3, program, make_all_played(Rule::waits_for_everyone)).run().deadlocks, 0U);
  });
}

// --- a rank stops

// Lets `rank` be killed in the middle of its next transition: what it would write is half written,
// but no step is entered.
void begin_transition(LoopToken& token, Rank& rank) {
  std::string lines(World::lines_of(rank), sizeof(Face));
  std::string slots(World::slots_of(rank), World::slots_bytes(rank));
  std::vector<std::uint64_t> entered;
  for (std::uint64_t step = 0; step < kDepth; ++step) {
    entered.push_back(rank.board().line(step).entered.load());
  }
  rank.advance(token);
  const auto spoil = [](const std::string& before, char* now) {
    for (std::size_t i = 0; i < before.size(); ++i) {
      now[i] = now[i] == before[i] ? now[i] : static_cast<char>(now[i] ^ 0x5a);
    }
  };
  spoil(lines, World::lines_of(rank));
  spoil(slots, World::slots_of(rank));
  for (std::uint64_t step = 0; step < kDepth; ++step) {
    rank.board().line(step).entered.store(entered[step]);
  }
}

// Calls `check` for each state that the ranks can be in, and each rank. Programs with very many
// states are left out.
void for_each_state(LoopToken& token, std::size_t ranks, const Program& program,
                    const std::function<void(Search&, const Search::Path&, std::size_t)>& check) {
  constexpr std::size_t kMostStates = 500;
  Search search(token, ranks, program);
  const Search::Findings found = search.run();
  ASSERT_FALSE(found.has_fault());
  if (found.states > kMostStates) {
    return;
  }
  for (const auto& [counts, known] : search.states()) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      check(search, known.path, rank);
      ASSERT_FALSE(::testing::Test::HasFailure()) << "rank " << rank << " after " << known.path.size() << " transitions";
    }
  }
}

TEST_F(ShmBoard, OthersEndInOrderWhereverARankStops) {
  with_baton([&](LoopToken& token) {
    std::size_t waited = 0;
    std::size_t not_waited = 0;
    for (const auto& [ranks, program] : kPrograms) {
      for_each_state(token, ranks, program, [&](Search& search, const Search::Path& path, std::size_t stopped) {
        const std::unique_ptr<World> silent = search.replay(path);
        const bool has_done_all = silent->rank(stopped).all_done();
        begin_transition(token, silent->rank(stopped));
        Survivors left(token, *silent, stopped);
        left.go_on();
        left.expect_order();
        const std::vector<std::size_t> possible = left.done();
        for (std::size_t rank = 0; rank < silent->size(); ++rank) {
          EXPECT_TRUE(rank == stopped || silent->rank(rank).error().ok()) << "nobody may fail before the end is known";
        }
        ++(left.waiting() != 0 ? waited : not_waited);
        EXPECT_TRUE(!has_done_all || left.waiting() == 0) << "a rank that has done all is needed no more";
        left.learn_of_the_end();
        left.expect_order();
        EXPECT_EQ(left.done(), possible);

        for (const State state : {State::failed, State::left}) {
          const std::unique_ptr<World> world = search.replay(path);
          begin_transition(token, world->rank(stopped));
          world->rank(stopped).board().set_state(state);
          Survivors others(token, *world, stopped);
          others.go_on();
          EXPECT_EQ(others.waiting(), 0U);
          others.expect_order();
          EXPECT_EQ(others.done(), possible) << "a call ends well if all that it needs was entered";
        }
      });
    }
    EXPECT_GT(waited, 0U);
    EXPECT_GT(not_waited, 0U);
  });
}

// --- a caller takes its memory back

// All ranks go on until none of them can advance.
void go_on(LoopToken& token, World& world) { Survivors(token, world, world.size()).go_on(); }

TEST_F(ShmBoard, OthersEndWellWhereverACallerLeavesAnOperationThatGoesOn) {
  with_baton([&](LoopToken& token) {
    for (const auto& [ranks, program] : kPrograms) {
      for_each_state(token, ranks, program, [&](Search& search, const Search::Path& path, std::size_t rank) {
        const std::unique_ptr<World> world = search.replay(path);
        if (world->rank(rank).goes_on()) {
          world->real(rank).take_back(Op::After::goes_on);
        }
        go_on(token, *world);
        EXPECT_TRUE(world->all_done());
        for (std::size_t each = 0; each < world->size(); ++each) {
          EXPECT_TRUE(world->rank(each).has_right_results());
          EXPECT_TRUE(world->real(each).left_memory_alone());
        }
      });
    }
  });
}

TEST_F(ShmBoard, OthersEndInOrderWhereverAnOperationIsGivenUp) {
  with_baton([&](LoopToken& token) {
    std::size_t failed = 0;
    for (const auto& [ranks, program] : kPrograms) {
      for_each_state(token, ranks, program, [&](Search& search, const Search::Path& path, std::size_t rank) {
        const std::unique_ptr<World> world = search.replay(path);
        if (!world->rank(rank).goes_on()) {
          return;
        }
        world->real(rank).take_back(Op::After::given_up);
        go_on(token, *world);  // the operation may still be polled before it is cancelled
        EXPECT_TRUE(world->real(rank).left_memory_alone());
        if (world->rank(rank).goes_on()) {
          world->real(rank).give_up(token);
        }
        Survivors others(token, *world, rank);
        others.go_on();
        EXPECT_EQ(others.waiting(), 0U);
        others.expect_order();
        EXPECT_TRUE(world->real(rank).left_memory_alone());
        failed += world->rank(rank).error().ok() ? 0 : 1;
      });
    }
    EXPECT_GT(failed, 0U);
  });
}

// --- a peer leaves while a rank looks at it

// Two boards. When the state of rank 1 is read for the first time, `meanwhile` is called first: the
// page with the state cannot be accessed until then.
class Trap {
 public:
  explicit Trap(std::size_t slot_bytes) : slots_(2, std::vector<char>(kDepth * slot_bytes)) {
    page_ = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const std::vector<Board::Place> places{{&faces_[0], slots_[0].data(), &state_},
                                           {&faces_[1], slots_[1].data(), new (page_) std::atomic<State>(State::open)}};
    for (int rank = 0; rank < 2; ++rank) {
      boards_.push_back(std::make_shared<Board>(places, rank, slot_bytes, Bells{}, std::make_shared<FailureDomain>("group")));
    }
  }
  ~Trap() {
    if (armed_ == this) {
      disarm();
    }
    ::munmap(page_, kPage);
  }
  Trap(const Trap&) = delete;
  Trap& operator=(const Trap&) = delete;

  const std::shared_ptr<Board>& board(std::size_t rank) const { return boards_[rank]; }
  void arm(std::function<void()> meanwhile) {
    meanwhile_ = std::move(meanwhile);
    armed_ = this;
    struct sigaction action {};
    action.sa_handler = [](int) { armed_->spring(); };
    action.sa_flags = SA_NODEFER;
    ::sigaction(SIGSEGV, &action, &before_);
    ::mprotect(page_, kPage, PROT_NONE);
  }
  bool has_sprung() const { return armed_ == nullptr; }

 private:
  void spring() {
    disarm();
    meanwhile_();
  }
  void disarm() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::mprotect(page_, kPage, PROT_READ | PROT_WRITE);
    armed_ = nullptr;
  }

  static constexpr std::size_t kPage = 4096;
  static inline Trap* armed_ = nullptr;

  std::array<Face, 2> faces_;
  std::vector<std::vector<char>> slots_;
  std::atomic<State> state_{State::open};
  void* page_;
  std::vector<std::shared_ptr<Board>> boards_;
  std::function<void()> meanwhile_;
  struct sigaction before_ {};
};

TEST_F(ShmBoard, TakesWhatAPeerGaveJustBeforeItLeft) {
  // In the all_gather, rank 0 waits for what rank 1 gives in the second step. In the broadcast, it
  // waits until rank 1 has read from the slot that the fifth step needs.
  for (const Call& call : {Call{Kind::all_gather, 200}, Call{Kind::broadcast, 600}}) {
    with_baton([&](LoopToken& token) {
      Trap trap(128);
      RealRank mine(token, trap.board(0), {call});
      RealRank peer(token, trap.board(1), {call});
      if (call.kind == Kind::broadcast) {
        while (trap.board(0)->line(3).entered.load() == 0) {
          ASSERT_TRUE(mine.advance(token));
        }
        EXPECT_TRUE(mine.advance(token));  // reads nothing
      } else {
        for (int transition = 0; transition < 2; ++transition) {
          mine.advance(token);
          peer.advance(token);
        }
        ASSERT_TRUE(mine.advance(token));
        ASSERT_TRUE(mine.advance(token));
      }
      trap.arm([&] {
        while (peer.advance(token)) {
        }
        trap.board(1)->set_state(State::left);
      });
      mine.advance(token);
      EXPECT_TRUE(trap.has_sprung());
      while (mine.advance(token)) {
      }
      EXPECT_TRUE(mine.all_done()) << mine.error().message();
      EXPECT_TRUE(mine.has_right_results());
    });
  }
}

}  // namespace
}  // namespace torch_ucc::shm
