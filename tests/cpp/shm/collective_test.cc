#include "shm/collective.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fakes/faces.h"
#include "fakes/limits.h"
#include "fakes/rig.h"

namespace torch_ucc::shm {
namespace {

using Kind = Movement::Kind;
using Bytes = std::vector<std::uint8_t>;

class Probe final : public Collective {
 public:
  using Collective::Collective;
  std::string describe() const override { return "a collective"; }
};

std::shared_ptr<Probe> probe(const std::shared_ptr<Board>& board, Movement movement) {
  return std::make_shared<Probe>(board, std::move(movement));
}

Part part(Bytes& bytes) { return {bytes.data(), bytes.size()}; }

Parts parts(std::vector<Bytes>& all) {
  std::vector<Part> each;
  for (Bytes& bytes : all) {
    each.push_back(part(bytes));
  }
  return Parts(std::move(each));
}

Bytes noise(std::mt19937& random, std::size_t size) {
  Bytes bytes(size);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::uint8_t>(random()); });
  return bytes;
}

// One collective of all ranks, with what each must have in the end. Reductions add bytes.
struct Case {
  Kind kind;
  std::size_t root;
  // By rank of the caller, then by rank of the part; one part where all ranks get the same
  std::vector<std::vector<Bytes>> sources;
  std::vector<std::vector<Bytes>> destinations;
  std::vector<std::vector<Bytes>> expected;
  bool in_place = false;

  Case(Kind a_kind, std::size_t ranks, std::size_t a_root, std::mt19937& random, std::size_t size, bool uneven)
      : kind(a_kind), root(a_root), sources(ranks), destinations(ranks), expected(ranks) {
    // sizes[from][to]
    std::vector<std::vector<std::size_t>> sizes(ranks, std::vector<std::size_t>(ranks, size));
    for (std::size_t from = 0; uneven && from < ranks; ++from) {
      const std::size_t own = random() % (size + 1);
      for (std::size_t to = 0; to < ranks; ++to) {
        switch (kind) {
          case Kind::all_gather:
          case Kind::gather:
            sizes[from][to] = own;
            break;
          case Kind::reduce_scatter:
            sizes[from][to] = from == 0 ? random() % (size + 1) : sizes[0][to];
            break;
          case Kind::all_to_all:
          case Kind::scatter:
            sizes[from][to] = random() % (size + 1);
            break;
          default:
            break;
        }
      }
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const bool is_root = rank == root;
      switch (kind) {
        case Kind::barrier:
          break;
        case Kind::broadcast:
          sources[rank] = is_root ? std::vector<Bytes>{noise(random, size)} : std::vector<Bytes>();
          break;
        case Kind::scatter:
          for (std::size_t to = 0; is_root && to < ranks; ++to) {
            sources[rank].push_back(noise(random, sizes[rank][to]));
          }
          break;
        case Kind::all_gather:
        case Kind::gather:
        case Kind::all_reduce:
        case Kind::reduce:
          sources[rank].push_back(noise(random, sizes[rank][0]));
          break;
        case Kind::all_to_all:
        case Kind::reduce_scatter:
          for (std::size_t to = 0; to < ranks; ++to) {
            sources[rank].push_back(noise(random, sizes[rank][to]));
          }
          break;
      }
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      expected[rank] = expected_of(rank);
      for (const Bytes& bytes : expected[rank]) {
        destinations[rank].emplace_back(bytes.size(), 0xee);
      }
    }
  }

  std::vector<Bytes> expected_of(std::size_t rank) const {
    const bool is_root = rank == root;
    std::vector<Bytes> all;
    switch (kind) {
      case Kind::barrier:
        break;
      case Kind::broadcast:
        if (!is_root) {
          all.push_back(sources[root][0]);
        }
        break;
      case Kind::scatter:
        if (!is_root) {
          all.push_back(sources[root][rank]);
        }
        break;
      case Kind::gather:
      case Kind::all_gather:
        for (std::size_t from = 0; (is_root || kind == Kind::all_gather) && from < sources.size(); ++from) {
          all.push_back(sources[from][0]);
        }
        break;
      case Kind::all_to_all:
        for (const auto& source : sources) {
          all.push_back(source[rank]);
        }
        break;
      case Kind::all_reduce:
      case Kind::reduce:
      case Kind::reduce_scatter:
        if (is_root || kind != Kind::reduce) {
          const std::size_t which = kind == Kind::reduce_scatter ? rank : 0;
          Bytes sum(sources[0][which].size());
          for (const auto& source : sources) {
            std::transform(sum.begin(), sum.end(), source[which].begin(), sum.begin(),
                           [](std::uint8_t a, std::uint8_t b) { return static_cast<std::uint8_t>(a + b); });
          }
          all.push_back(std::move(sum));
        }
        break;
    }
    return all;
  }

  Movement movement(std::size_t rank) {
    Movement movement;
    movement.kind = kind;
    movement.root = kind == Kind::barrier || kind == Kind::all_gather || kind == Kind::all_to_all || kind == Kind::all_reduce ||
                            kind == Kind::reduce_scatter
                        ? 0
                        : root;
    const bool lists_sources = kind == Kind::scatter || kind == Kind::all_to_all || kind == Kind::reduce_scatter;
    const bool lists_destinations = kind == Kind::gather || kind == Kind::all_to_all || kind == Kind::all_gather;
    if (!sources[rank].empty()) {
      movement.sources = lists_sources ? parts(sources[rank]) : Parts(part(sources[rank][0]));
    }
    if (!destinations[rank].empty()) {
      movement.destinations = lists_destinations ? parts(destinations[rank]) : Parts(part(destinations[rank][0]));
    }
    return movement;
  }

  void expect_done() const {
    for (std::size_t rank = 0; rank < expected.size(); ++rank) {
      EXPECT_EQ(destinations[rank], expected[rank]) << "kind " << static_cast<int>(kind) << " rank " << rank;
    }
  }
};

constexpr std::array kKinds{Kind::barrier,    Kind::broadcast,  Kind::all_gather, Kind::gather,        Kind::scatter,
                            Kind::all_to_all, Kind::all_reduce, Kind::reduce,     Kind::reduce_scatter};

// Runs several collectives in a row. At each moment a random rank polls, so that ranks are ahead of
// each other by as much as the protocol allows.
void run_interleaved(Faces& faces, std::vector<Case>& cases, std::mt19937& random) {
  Rig rig;
  rig.engine.with_baton(hard_limit(), [&](LoopToken& token) {
    std::vector<std::vector<std::shared_ptr<Probe>>> ops(faces.ranks());
    std::vector<std::size_t> begun(faces.ranks());
    std::size_t open = faces.ranks() * cases.size();
    for (std::size_t rank = 0; rank < faces.ranks(); ++rank) {
      for (Case& each : cases) {
        ops[rank].push_back(probe(faces.board(rank), each.movement(rank)));
      }
    }
    std::vector<std::vector<bool>> ended(faces.ranks(), std::vector<bool>(cases.size()));
    for (int rounds = 0; open != 0; ++rounds) {
      ASSERT_LT(rounds, 10000000) << "the ranks wait for each other for ever";
      const std::size_t rank = random() % faces.ranks();
      if (begun[rank] < cases.size() && random() % 4 == 0) {
        ASSERT_TRUE(ops[rank][begun[rank]++]->start(token).ok());
      }
      for (std::size_t i = 0; i < begun[rank]; ++i) {
        if (!ended[rank][i] && ops[rank][i]->poll(token) == Op::State::ended) {
          ASSERT_TRUE(ops[rank][i]->transport_status().ok()) << ops[rank][i]->transport_status().message();
          ended[rank][i] = true;
          --open;
        }
      }
    }
  });
}

TEST(ShmCollective, GivesEachRankWhatItMustHave) {
  std::mt19937 random(1);
  for (std::size_t ranks = 1; ranks <= 9; ++ranks) {
    Faces faces(ranks);
    for (const Kind kind : kKinds) {
      for (const std::size_t size : {0, 1, 96, 97, 1000, 1024, 1025, 5000, 20000}) {
        std::vector<Case> one;
        one.emplace_back(kind, ranks, random() % ranks, random, size, false);
        run_interleaved(faces, one, random);
        one.front().expect_done();
      }
    }
  }
}

TEST(ShmCollective, TakesPartsOfDifferentSizes) {
  std::mt19937 random(2);
  for (const std::size_t ranks : {2U, 3U, 5U}) {
    Faces faces(ranks);
    for (const Kind kind : {Kind::all_gather, Kind::gather, Kind::scatter, Kind::all_to_all, Kind::reduce_scatter}) {
      for (int i = 0; i < 30; ++i) {
        std::vector<Case> one;
        one.emplace_back(kind, ranks, random() % ranks, random, random() % 6000, true);
        run_interleaved(faces, one, random);
        one.front().expect_done();
      }
    }
  }
}

TEST(ShmCollective, RunsManyInARow) {
  std::mt19937 random(3);
  for (const std::size_t ranks : {1U, 2U, 3U, 4U, 7U}) {
    Faces faces(ranks);
    for (int round = 0; round < 20; ++round) {
      std::vector<Case> cases;
      for (int i = 0; i < 12; ++i) {
        cases.emplace_back(kKinds.at(random() % kKinds.size()), ranks, random() % ranks, random,
                           random() % 3 == 0 ? random() % 9000 : random() % 200, random() % 2 == 0);
      }
      run_interleaved(faces, cases, random);
      for (const Case& each : cases) {
        each.expect_done();
      }
    }
  }
}

TEST(ShmCollective, RunsBetweenThreads) {
  constexpr std::size_t kRanks = 3;
  std::mt19937 random(4);
  Faces faces(kRanks);
  std::vector<Case> cases;
  for (int i = 0; i < 200; ++i) {
    cases.emplace_back(kKinds.at(random() % kKinds.size()), kRanks, random() % kRanks, random, random() % 4000, false);
  }
  std::vector<std::thread> threads;
  threads.reserve(kRanks);
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      Rig rig;
      for (Case& each : cases) {
        const auto op = probe(faces.board(rank), each.movement(rank));
        ASSERT_TRUE(rig.engine.post_and_wait(op, hard_limit()));
        ASSERT_TRUE(op->completion().status().ok()) << op->completion().status().message();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const Case& each : cases) {
    each.expect_done();
  }
}

// --- in place

TEST(ShmCollective, ReducesInPlace) {
  std::mt19937 random(5);
  for (const std::size_t ranks : {1U, 2U, 3U, 6U}) {
    Faces faces(ranks);
    for (const std::size_t size : {4, 500, 30000}) {
      std::vector<Case> one;
      one.emplace_back(Kind::all_reduce, ranks, 0, random, size, false);
      Case& only = one.front();
      Rig rig;
      rig.engine.with_baton(hard_limit(), [&](LoopToken& token) {
        std::vector<std::shared_ptr<Probe>> ops;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          Movement movement = only.movement(rank);
          movement.destinations = movement.sources;
          ops.push_back(probe(faces.board(rank), movement));
          ASSERT_TRUE(ops.back()->start(token).ok());
        }
        for (std::size_t ended = 0; ended != ranks;) {
          ended = 0;
          for (const auto& op : ops) {
            ended += op->poll(token) == Op::State::ended ? 1 : 0;
          }
        }
      });
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(only.sources[rank], only.expected[rank]);
      }
    }
  }
}

// Bells are rung rarely: with many ranks that sleep, each ring wakes all of them.
TEST(ShmCollective, RingsWhenAPeerMayWaitForItAlone) {
  Rig rig;
  const Bell bell;
  const auto rings = [&](LoopToken& token, Collective& op) {
    Bell::Sleep sleep(bell);
    EXPECT_TRUE(op.start(token).ok());
    op.announce();
    return sleep.wait({});
  };
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{100'000}}) {
    Faces faces(3, 1024, {&bell});
    std::vector<Bytes> data(3, Bytes(bytes, 1));
    ASSERT_TRUE(rig.engine.with_baton(hard_limit(), [&](LoopToken& token) {
      std::vector<std::shared_ptr<Probe>> ops;
      for (std::size_t rank = 0; rank < 3; ++rank) {
        Movement movement;
        movement.kind = Kind::all_reduce;
        movement.sources = movement.destinations = Parts(part(data[rank]));
        ops.push_back(probe(faces.board(rank), movement));
        EXPECT_EQ(rings(token, *ops.back()), rank == 2) << "only the last rank lets others go on";
      }
    }));
  }
  Faces faces(3, 1024, {&bell});
  Bytes data(8);
  ASSERT_TRUE(rig.engine.with_baton(hard_limit(), [&](LoopToken& token) {
    Movement movement;
    movement.kind = Kind::broadcast;
    movement.sources = Parts(part(data));
    const auto op = probe(faces.board(0), movement);
    EXPECT_TRUE(rings(token, *op)) << "each rank waits for the root alone";
  }));
}

TEST(ShmCollective, RingsWhenItGivesUp) {
  Rig rig;
  const Bell bell;
  Faces faces(3, 1024, {&bell});
  ASSERT_TRUE(rig.engine.with_baton(hard_limit(), [&](LoopToken& token) {
    const auto op = probe(faces.board(0), Movement());
    EXPECT_TRUE(op->start(token).ok());
    op->announce();
    Bell::Sleep sleep(bell);
    op->cancel(token);
    EXPECT_TRUE(sleep.wait({}));
  }));
}

// --- what goes wrong

class TwoRanks : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = 5000;

  std::shared_ptr<Probe> reduction(std::size_t rank, std::size_t bytes) {
    Movement movement;
    movement.kind = Kind::all_reduce;
    data_[rank].assign(bytes, static_cast<std::uint8_t>(rank + 1));
    movement.sources = movement.destinations = Parts(part(data_[rank]));
    return probe(faces_.board(rank), movement);
  }
  void with_baton(const std::function<void(LoopToken&)>& body) { ASSERT_TRUE(rig_.engine.with_baton(hard_limit(), body)); }
  // Polls `op` until it has ended, or often enough to show that it waits.
  static bool ends(LoopToken& token, Probe& op) {
    for (int i = 0; i < 1000; ++i) {
      if (op.poll(token) == Op::State::ended) {
        return true;
      }
    }
    return false;
  }

  static void expect_refused(LoopToken& token, Probe& one, Probe& other) {
    ASSERT_TRUE(one.start(token).ok());
    ASSERT_TRUE(other.start(token).ok());
    EXPECT_TRUE(ends(token, one));
    EXPECT_TRUE(ends(token, other));
    EXPECT_EQ(one.transport_status().code(), StatusCode::mismatch);
    EXPECT_EQ(other.transport_status().code(), StatusCode::mismatch);
  }

  Rig rig_;
  Faces faces_{2};
  std::array<Bytes, 2> data_;
};

TEST_F(TwoRanks, RefuseCallsThatDiffer) {
  with_baton([&](LoopToken& token) {
    const auto one = reduction(0, kBytes);
    const auto other = reduction(1, kBytes + 1);
    expect_refused(token, *one, *other);
    EXPECT_NE(one->transport_status().message().find("all_reduce of 5001 bytes"), std::string::npos);
  });
  EXPECT_EQ(data_[0], Bytes(kBytes, 1)) << "nothing may be stored";
}

TEST_F(TwoRanks, RefuseOtherCollectives) {
  with_baton([&](LoopToken& token) {
    const auto one = reduction(0, 8);
    const auto other = probe(faces_.board(1), Movement());
    expect_refused(token, *one, *other);
  });
}

TEST_F(TwoRanks, RefuseAnotherSplitOfAsManyBytes) {
  Bytes data0(200, 1);
  Bytes data1(200, 2);
  Bytes result0(200);
  Bytes result1(100);
  with_baton([&](LoopToken& token) {
    Movement all_to_the_first;
    all_to_the_first.kind = Kind::reduce_scatter;
    all_to_the_first.sources = Parts(std::vector<Part>{{data0.data(), 200}, {nullptr, 0}});
    all_to_the_first.destinations = Parts(part(result0));
    Movement half;
    half.kind = Kind::reduce_scatter;
    half.sources = Parts(std::vector<Part>{{data1.data(), 100}, {data1.data() + 100, 100}});
    half.destinations = Parts(part(result1));
    const auto one = probe(faces_.board(0), all_to_the_first);
    const auto other = probe(faces_.board(1), half);
    expect_refused(token, *one, *other);
  });
}

// The root of a broadcast reads nothing of the others, so each believes that it has done its part.
TEST_F(TwoRanks, NoticeWithTheNextCollectiveThatBothWereTheRoot) {
  with_baton([&](LoopToken& token) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      data_[rank].assign(8, 1);
      Movement broadcast;
      broadcast.kind = Kind::broadcast;
      broadcast.root = rank;
      broadcast.sources = Parts(part(data_[rank]));
      const auto op = probe(faces_.board(rank), broadcast);
      ASSERT_TRUE(op->start(token).ok());
      ASSERT_TRUE(ends(token, *op));
      ASSERT_TRUE(op->transport_status().ok());
    }
    const auto one = probe(faces_.board(0), Movement());
    const auto other = probe(faces_.board(1), Movement());
    expect_refused(token, *one, *other);
    EXPECT_NE(one->transport_status().message().find("rank 1 called other collectives than this rank before this barrier"),
              std::string::npos);
  });
}

// Rank 1 is in its next collective while rank 0 is in the middle of a long one. What rank 0 gave in an earlier
// collective lies in the slots still, and fits what rank 1 calls.
TEST_F(TwoRanks, DoNotTakeTheStepOfALongerCollectiveForTheirOwn) {
  Bytes large(8 * faces_.board(0)->slot_bytes(), 5);
  Bytes small(8, 6);
  for (int i = 0; i < 4; ++i) {
    with_baton([&](LoopToken& token) {
      const auto one = reduction(0, 8);
      const auto other = reduction(1, 8);
      ASSERT_TRUE(one->start(token).ok());
      ASSERT_TRUE(other->start(token).ok());
      ASSERT_TRUE(ends(token, *one));
      ASSERT_TRUE(ends(token, *other));
    });
  }
  with_baton([&](LoopToken& token) {
    Movement broadcast;
    broadcast.kind = Kind::broadcast;
    broadcast.sources = Parts(part(large));
    const auto root = probe(faces_.board(0), broadcast);
    Movement reduce;
    reduce.kind = Kind::reduce;
    reduce.sources = Parts(part(small));
    const auto gives = probe(faces_.board(1), reduce);
    ASSERT_TRUE(root->start(token).ok());
    ASSERT_TRUE(gives->start(token).ok());
    ASSERT_TRUE(ends(token, *gives));
    ASSERT_TRUE(gives->transport_status().ok()) << "it reads nothing";
    EXPECT_FALSE(ends(token, *root));
    const auto next = reduction(1, 8);
    ASSERT_TRUE(next->start(token).ok());
    EXPECT_TRUE(ends(token, *next));
    EXPECT_EQ(next->transport_status().code(), StatusCode::mismatch);
    EXPECT_TRUE(ends(token, *root));
    EXPECT_FALSE(root->transport_status().ok());
  });
  EXPECT_EQ(data_[1], Bytes(8, 2)) << "nothing may be stored";
}

TEST_F(TwoRanks, GatherOfAnotherSizeFailsAloneAtTheRoot) {
  Bytes gathered0(8);
  Bytes gathered1(8);
  Bytes sent(12, 7);
  with_baton([&](LoopToken& token) {
    Movement root;
    root.kind = Kind::gather;
    root.sources = Parts(part(gathered0));
    root.destinations = Parts(std::vector<Part>{part(gathered0), part(gathered1)});
    Movement other;
    other.kind = Kind::gather;
    other.sources = Parts(part(sent));
    const auto receives = probe(faces_.board(0), root);
    const auto sends = probe(faces_.board(1), other);
    ASSERT_TRUE(receives->start(token).ok());
    ASSERT_TRUE(sends->start(token).ok());
    EXPECT_TRUE(ends(token, *receives));
    EXPECT_TRUE(ends(token, *sends));
    EXPECT_EQ(receives->transport_status().code(), StatusCode::invalid);
    EXPECT_NE(receives->transport_status().message().find("rank 1 sends 12 bytes, and this rank expects 8"), std::string::npos);
    EXPECT_TRUE(sends->transport_status().ok());
    // The group can be used.
    const auto one = reduction(0, kBytes);
    const auto two = reduction(1, kBytes);
    ASSERT_TRUE(one->start(token).ok());
    ASSERT_TRUE(two->start(token).ok());
    for (bool done = false; !done;) {
      const bool first = one->poll(token) == Op::State::ended;
      done = two->poll(token) == Op::State::ended && first;
    }
  });
  EXPECT_EQ(data_[0], Bytes(kBytes, 3));
}

TEST(ShmCollective, StoresNothingIfSeveralPeersGiveAnotherSize) {
  Rig rig;
  Faces faces(3);
  std::vector<Bytes> gathered(3, Bytes(8, 0xee));
  std::vector<Bytes> sent{Bytes(8, 1), Bytes(12, 2), Bytes(4, 3)};
  std::vector<std::shared_ptr<Probe>> ops;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    Movement gather;
    gather.kind = Kind::gather;
    gather.sources = Parts(part(sent[rank]));
    gather.destinations = rank == 0 ? parts(gathered) : Parts();
    ops.push_back(probe(faces.board(rank), gather));
  }
  ASSERT_TRUE(rig.engine.with_baton(hard_limit(), [&](LoopToken& token) {
    for (const auto& op : ops) {
      ASSERT_TRUE(op->start(token).ok());
    }
    for (int i = 0; i < 100; ++i) {
      for (const auto& op : ops) {
        op->poll(token);
      }
    }
  }));
  EXPECT_EQ(ops[0]->transport_status().code(), StatusCode::invalid);
  EXPECT_EQ(gathered, std::vector<Bytes>(3, Bytes(8, 0xee)));
}

TEST_F(TwoRanks, NoticeThatAPeerHasGivenUp) {
  with_baton([&](LoopToken& token) {
    const auto one = reduction(0, kBytes);
    ASSERT_TRUE(one->start(token).ok());
    EXPECT_FALSE(ends(token, *one));
    const auto other = reduction(1, kBytes);
    other->cancel(token);
    EXPECT_TRUE(ends(token, *one));
    EXPECT_EQ(one->transport_status().code(), StatusCode::transport);
    EXPECT_NE(one->transport_status().message().find("rank 1 has given up the group"), std::string::npos);
  });
}

TEST_F(TwoRanks, UseWhatAPeerGaveBeforeItLeft) {
  with_baton([&](LoopToken& token) {
    const auto one = reduction(0, 8);
    const auto other = reduction(1, 8);
    ASSERT_TRUE(other->start(token).ok());
    faces_.board(1)->set_state(State::left);
    ASSERT_TRUE(one->start(token).ok());
    EXPECT_TRUE(ends(token, *one));
    EXPECT_TRUE(one->transport_status().ok());
  });
  EXPECT_EQ(data_[0], Bytes(8, 3));
}

TEST_F(TwoRanks, NeedFromALostPeerOnlyWhatItHasNotGiven) {
  with_baton([&](LoopToken& token) {
    const auto small = reduction(0, 8);
    const auto peer_small = reduction(1, 8);
    ASSERT_TRUE(small->start(token).ok());
    EXPECT_EQ(small->need_of({1, {}, Loss::kUnknown}), Op::Need::missing);
    ASSERT_TRUE(peer_small->start(token).ok());
    EXPECT_NE(small->need_of({1, {}, Loss::kUnknown}), Op::Need::missing);
    EXPECT_TRUE(ends(token, *small));
  });
}

TEST_F(TwoRanks, GoOnWithACopyWhenTheCallerLeaves) {
  with_baton([&](LoopToken& token) {
    const auto one = reduction(0, kBytes);
    const auto other = reduction(1, kBytes);
    ASSERT_TRUE(one->start(token).ok());
    ASSERT_TRUE(one->take_back(Op::After::goes_on));
    data_[0].assign(kBytes, 100);  // the memory is the caller's again
    ASSERT_TRUE(other->start(token).ok());
    bool first = false;
    bool second = false;
    for (int i = 0; i < 100000 && !(first && second); ++i) {
      first = first || one->poll(token) == Op::State::ended;
      second = second || other->poll(token) == Op::State::ended;
    }
    EXPECT_TRUE(first && second);
  });
  EXPECT_EQ(data_[1], Bytes(kBytes, 3));
  EXPECT_EQ(data_[0], Bytes(kBytes, 100));
}

TEST_F(TwoRanks, StopWhenTheCallerHasItsMemoryBack) {
  with_baton([&](LoopToken& token) {
    const auto one = reduction(0, kBytes);
    const auto other = reduction(1, kBytes);
    ASSERT_TRUE(one->start(token).ok());
    ASSERT_TRUE(one->take_back(Op::After::given_up));
    ASSERT_TRUE(other->start(token).ok());
    EXPECT_TRUE(ends(token, *one));
    EXPECT_FALSE(one->transport_status().ok());
    EXPECT_TRUE(ends(token, *other));
    EXPECT_FALSE(other->transport_status().ok());
  });
  EXPECT_EQ(data_[0], Bytes(kBytes, 1));
}

// A peer's memory is never trusted: whatever it holds, the operation ends or waits.
TEST_F(TwoRanks, SurvivesAnyMemoryOfAPeer) {
  std::mt19937 random(6);
  for (int i = 0; i < 3000; ++i) {
    Faces faces(2);
    Case one(kKinds.at(random() % kKinds.size()), 2, random() % 2, random, random() % 3000, random() % 2 == 0);
    with_baton([&](LoopToken& token) {
      const auto op = probe(faces.board(0), one.movement(0));
      ASSERT_TRUE(op->start(token).ok());
      for (int polls = 0; polls < 50 && op->poll(token) != Op::State::ended; ++polls) {
        Line& line = faces.face(1).lines.at(random() % kDepth);
        line.call = random() % 2 == 0 ? one.movement(1).call() : random();
        line.before = random() % 8 != 0 ? faces.board(0)->history() : random();
        line.bytes = random() % 2 == 0 ? one.movement(1).bytes_given() : random() * std::uint64_t{0x100000001};
        line.steps = random() % 3 == 0 ? 1 : random() * std::uint64_t{0x100000001};
        const Bytes some = noise(random, faces.slot_bytes());
        std::memcpy(faces.slots(1) + (random() % kDepth) * some.size(), some.data(), some.size());
        line.entered.store(random() % 2 == 0 ? random() % 8 : ~std::uint64_t{0} - random() % 3, std::memory_order_release);
      }
    });
  }
}

}  // namespace
}  // namespace torch_ucc::shm
