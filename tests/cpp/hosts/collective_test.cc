// All ranks of a few hosts in one process. Between hosts, the test does what rows ask of UCC.
#include "hosts/collective.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "fakes/faces.h"
#include "fakes/fake_ucc.h"
#include "fakes/limits.h"
#include "fakes/rig.h"
#include "ucc/error_log.h"

namespace torch_ucc::hosts {
namespace {

using Kind = shm::Movement::Kind;
using Numbers = std::vector<std::int32_t>;

class Probe final : public Collective {
 public:
  using Collective::Collective;
  std::string describe() const override { return "a collective"; }
};

class Job {
 public:
  // `host_of`: the host of each rank.
  Job(const std::vector<std::size_t>& host_of, std::size_t piece_bytes, LossPolicy losses = {})
      : rig_(losses), layout_(std::make_shared<Layout>(ByHost(host_of))), exchanged_(layout_->rows()) {
    ucc = {};
    ucc.on_init = [this](std::size_t request) { initialised_by_[current_].push_back(request); };
    for (std::size_t host = 0; host < layout_->hosts(); ++host) {
      faces_.push_back(std::make_unique<shm::Faces>(layout_->on(host).size()));
    }
    for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
      const auto domain = std::make_shared<FailureDomain>("group");
      const std::size_t host = layout_->host_of(rank);
      const std::size_t place = layout_->place_of(rank);
      const std::shared_ptr<UccTeam> row = place < layout_->rows() ? team(domain) : nullptr;
      ranks_.push_back({{layout_, host, faces_[host]->board(place), row, piece_bytes, &rig_.engine}, team(domain)});
    }
    initialised_by_.resize(ranks_.size());
  }

  std::size_t size() const { return ranks_.size(); }
  const Layout& layout() const { return *layout_; }

  std::shared_ptr<Probe> make(std::size_t rank, shm::Movement movement) {
    return std::make_shared<Probe>(ranks_[rank].team, ranks_[rank].levels, std::move(movement),
                                   UccReduction{UCC_DT_INT32, UCC_OP_SUM});
  }
  Status start(std::size_t rank, Probe& op) {
    Status status;
    current_ = rank;
    with_baton([&](LoopToken& token) { status = op.start(token); });
    return status;
  }
  Op::State poll(std::size_t rank, Probe& op) {
    Op::State state{};
    current_ = rank;
    with_baton([&](LoopToken& token) { state = op.poll(token); });
    return state;
  }
  Engine& engine() { return rig_.engine; }
  bool is_drained(Probe& op) {
    bool drained = false;
    with_baton([&](LoopToken& token) { drained = op.is_drained(token); });
    return drained;
  }

  // Ends the next collective of each row that all its ranks have posted. Returns how many there were.
  std::size_t exchange() {
    std::size_t ended = 0;
    for (std::size_t row = 0; row < layout_->rows(); ++row) {
      std::vector<std::size_t> requests;
      for (const std::size_t rank : layout_->row(row)) {
        if (exchanged_[row] < initialised_by_[rank].size()) {
          requests.push_back(initialised_by_[rank][exchanged_[row]]);
        }
      }
      if (requests.size() == layout_->hosts()) {
        ++exchanged_[row];
        ++ended;
        serve(requests);
      }
    }
    return ended;
  }

  std::size_t bytes_sent = 0;  // to other hosts, by all ranks together

 private:
  struct Rank {
    Levels levels;
    std::shared_ptr<UccTeam> team;
  };

  // Does what UCC does for one collective of a row. `requests` are by host.
  void serve(const std::vector<std::size_t>& requests) {
    const std::size_t hosts = requests.size();
    ASSERT_NE(hosts, 0U);
    const ucc_coll_args_t first = ucc.initialised[requests[0]];
    const auto args = [&](std::size_t host) -> const ucc_coll_args_t& { return ucc.initialised[requests[host]]; };
    const auto at = [](const ucc_coll_buffer_info_t& side, std::size_t part, std::size_t bytes) {
      return static_cast<char*>(side.buffer) + part * bytes;
    };
    for (std::size_t host = 0; host < hosts; ++host) {
      ASSERT_EQ(args(host).coll_type, first.coll_type);
      ASSERT_EQ(args(host).root, first.root);
      if (first.coll_type != UCC_COLL_TYPE_REDUCE &&
          first.coll_type != UCC_COLL_TYPE_GATHER) {  // each side is of some ranks only
        ASSERT_EQ(args(host).src.info.count, first.src.info.count);
        ASSERT_EQ(args(host).dst.info.count, first.dst.info.count);
      }
    }
    if (first.coll_type == UCC_COLL_TYPE_ALLREDUCE || first.coll_type == UCC_COLL_TYPE_REDUCE) {
      reduce(requests);
    }
    const std::size_t part = args(first.root).dst.info.count / hosts;
    for (std::size_t from = 0; from < hosts; ++from) {
      for (std::size_t to = 0; to < hosts; ++to) {
        if (first.coll_type == UCC_COLL_TYPE_ALLTOALL) {
          std::memcpy(at(args(to).dst.info, from, part), at(args(from).src.info, to, part), part);
          bytes_sent += from == to ? 0 : part;
        } else if (from == to) {
          continue;
        } else if (first.coll_type == UCC_COLL_TYPE_ALLGATHER) {
          std::memcpy(at(args(to).dst.info, from, part), at(args(from).dst.info, from, part), part);
          bytes_sent += part;
        } else if (first.coll_type == UCC_COLL_TYPE_GATHER && to == first.root) {
          ASSERT_EQ(args(from).src.info.count, part);
          std::memcpy(at(args(to).dst.info, from, part), args(from).src.info.buffer, part);
          bytes_sent += part;
        } else if (first.coll_type == UCC_COLL_TYPE_BCAST && from == first.root) {
          std::memcpy(args(to).src.info.buffer, args(from).src.info.buffer, first.src.info.count);
          bytes_sent += first.src.info.count;
        }
      }
    }
    for (const std::size_t request : requests) {
      ucc.end(request);
    }
  }
  // Adds up what the hosts give. Each sends as much as in the best algorithm.
  void reduce(const std::vector<std::size_t>& requests) {
    const ucc_coll_args_t& first = ucc.initialised[requests[0]];
    const bool all = first.coll_type == UCC_COLL_TYPE_ALLREDUCE;
    const auto side = [&](std::size_t host) -> const ucc_coll_buffer_info_t& {
      const ucc_coll_args_t& args = ucc.initialised[requests[host]];
      return all || host == first.root ? args.dst.info : args.src.info;
    };
    std::vector<std::int32_t> sum(side(0).count);
    for (std::size_t host = 0; host < requests.size(); ++host) {
      ASSERT_EQ(side(host).count, sum.size());
      const auto* numbers = static_cast<const std::int32_t*>(side(host).buffer);
      std::transform(sum.begin(), sum.end(), numbers, sum.begin(), std::plus<>());
    }
    for (std::size_t host = 0; host < requests.size(); ++host) {
      if (all || host == first.root) {
        std::memcpy(side(host).buffer, sum.data(), sum.size() * sizeof(sum[0]));
      }
    }
    bytes_sent += (all ? 2 : 1) * (requests.size() - 1) * sum.size() * sizeof(sum[0]);
  }
  void with_baton(const std::function<void(LoopToken&)>& body) { ASSERT_TRUE(rig_.engine.with_baton(hard_limit(), body)); }
  std::shared_ptr<UccTeam> team(const std::shared_ptr<FailureDomain>& domain) {
    auto made = std::make_shared<UccTeam>(5, std::vector<std::uint64_t>{0, 1}, 0, Bells{}, domain);
    with_baton([&](LoopToken& token) { EXPECT_EQ(made->create_post(token, context_), UCC_OK); });
    return made;
  }

  Rig rig_;
  UccContext context_;
  std::shared_ptr<const Layout> layout_;
  std::vector<std::unique_ptr<shm::Faces>> faces_;
  std::vector<Rank> ranks_;
  std::size_t current_ = 0;                               // the rank that is driven
  std::vector<std::vector<std::size_t>> initialised_by_;  // by rank: its collectives of UCC
  std::vector<std::size_t> exchanged_;                    // by row
};

Numbers numbers_of(std::size_t rank, std::size_t count) {
  Numbers numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    numbers[i] = static_cast<std::int32_t>((rank + 1) * 1000003 + i * 17);
  }
  return numbers;
}

Numbers sum_of(std::size_t ranks, std::size_t count) {
  Numbers sum(count);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const Numbers numbers = numbers_of(rank, count);
    std::transform(sum.begin(), sum.end(), numbers.begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

Part part_of(Numbers& numbers) { return {numbers.data(), numbers.size() * sizeof(numbers[0])}; }

shm::Parts parts_of(Numbers& numbers, std::size_t ranks) {
  std::vector<Part> parts;
  const std::size_t each = numbers.size() / ranks;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    parts.push_back({numbers.data() + rank * each, each * sizeof(numbers[0])});
  }
  return shm::Parts(std::move(parts));
}

// A collective of all ranks: the memory that each has, and what it must hold in the end.
struct Case {
  // `count` numbers for each rank. `in_place`: sources and destinations share memory where they can.
  Case(Kind kind, std::size_t ranks, std::size_t root, std::size_t count, bool in_place)
      : kind(kind), root(root), in_place(in_place), memory(ranks), results(ranks), expected(ranks) {
    Numbers all;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const Numbers numbers = numbers_of(rank, count);
      all.insert(all.end(), numbers.begin(), numbers.end());
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      switch (kind) {
        case Kind::barrier:
          break;
        case Kind::broadcast:
          memory[rank] = rank == root ? numbers_of(root, count) : Numbers(count);
          expected[rank] = numbers_of(root, count);
          break;
        case Kind::all_gather:
          memory[rank] = numbers_of(rank, count);
          results[rank].resize(ranks * count);
          expected[rank] = all;
          if (in_place) {
            std::copy(memory[rank].begin(), memory[rank].end(),
                      results[rank].begin() + static_cast<std::ptrdiff_t>(rank * count));
          }
          break;
        case Kind::reduce_scatter: {
          memory[rank] = numbers_of(rank, ranks * count);
          results[rank].resize(count);
          const Numbers sum = sum_of(ranks, ranks * count);
          expected[rank].assign(sum.begin() + static_cast<std::ptrdiff_t>(rank * count),
                                sum.begin() + static_cast<std::ptrdiff_t>((rank + 1) * count));
          break;
        }
        default:
          memory[rank] = numbers_of(rank, count);
          results[rank].resize(count);
          expected[rank] = kind == Kind::all_reduce || rank == root ? sum_of(ranks, count) : Numbers(count);
          break;
      }
    }
  }

  shm::Movement movement(std::size_t rank) {
    shm::Movement movement{.kind = kind, .root = root, .type = shm::DataType::int32, .op = shm::ReduceOp::sum};
    Numbers& own = memory[rank];
    Numbers& result = results[rank];
    const std::size_t ranks = memory.size();
    switch (kind) {
      case Kind::barrier:
        break;
      case Kind::broadcast:
        (rank == root ? movement.sources : movement.destinations) = shm::Parts(part_of(own));
        break;
      case Kind::all_gather:
        movement.destinations = parts_of(result, ranks);
        movement.sources = in_place ? shm::Parts(movement.destinations.of(rank)) : shm::Parts(part_of(own));
        break;
      case Kind::reduce_scatter:
        movement.sources = parts_of(own, ranks);
        movement.destinations = in_place ? shm::Parts(movement.sources.of(rank)) : shm::Parts(part_of(result));
        break;
      default:
        movement.sources = shm::Parts(part_of(own));
        if (kind == Kind::all_reduce || rank == root) {
          movement.destinations = shm::Parts(part_of(in_place ? own : result));
        }
        break;
    }
    return movement;
  }
  Numbers found(std::size_t rank) const {
    if (kind == Kind::broadcast || (in_place && kind != Kind::all_gather && kind != Kind::reduce_scatter && rank == root)) {
      return memory[rank];
    }
    if (in_place && kind == Kind::all_reduce) {
      return memory[rank];
    }
    if (in_place && kind == Kind::reduce_scatter) {
      const std::size_t count = results[rank].size();
      const auto begin = memory[rank].begin() + static_cast<std::ptrdiff_t>(rank * count);
      return Numbers(begin, begin + static_cast<std::ptrdiff_t>(count));
    }
    return results[rank];
  }

  const Kind kind;
  const std::size_t root;
  const bool in_place;
  std::vector<Numbers> memory;  // by rank
  std::vector<Numbers> results;
  std::vector<Numbers> expected;
};

// Drives the ranks and the network in random order, to the end.
void run(Job& job, Case& what, std::mt19937& random) {
  std::vector<std::shared_ptr<Probe>> ops;
  for (std::size_t rank = 0; rank < job.size(); ++rank) {
    ops.push_back(job.make(rank, what.movement(rank)));
    ASSERT_TRUE(job.start(rank, *ops.back()).ok());
  }
  std::vector<bool> ended(job.size());
  std::size_t left = job.size();
  for (int turns = 0; left != 0 && turns < 1000000; ++turns) {
    const std::size_t rank = random() % (job.size() + 1);
    if (rank == job.size()) {
      job.exchange();
    } else if (!ended[rank] && job.poll(rank, *ops[rank]) == Op::State::ended) {
      ended[rank] = true;
      --left;
    }
  }
  ASSERT_EQ(left, 0U) << "ranks have not ended";
  for (std::size_t rank = 0; rank < job.size(); ++rank) {
    EXPECT_TRUE(ops[rank]->transport_status().ok()) << ops[rank]->transport_status().message();
    EXPECT_TRUE(job.is_drained(*ops[rank]));
    ASSERT_EQ(what.found(rank), what.expected[rank]) << "rank " << rank << " of " << job.size();
  }
}

const std::vector<std::vector<std::size_t>> kEven{
    {0, 0, 1, 1}, {0, 1, 1, 0}, {0, 0, 1, 1, 2, 2}, {2, 1, 0}, {0, 1, 2, 3, 0, 1, 2, 3}};
const std::vector<std::vector<std::size_t>> kUneven{{0, 1, 1, 1}, {0, 0, 0, 1, 1, 2, 2, 2, 2}, {1, 0, 1, 1, 0}};

class Kinds : public testing::TestWithParam<Kind> {};

// In any order of the ranks' and the network's progress.
TEST_P(Kinds, GiveEachRankWhatIsDue) {
  std::mt19937 random(1);
  const bool needs_even = GetParam() == Kind::all_gather || GetParam() == Kind::reduce_scatter;
  const bool has_root = GetParam() == Kind::broadcast || GetParam() == Kind::reduce;
  std::vector<std::vector<std::size_t>> places = kEven;
  if (!needs_even) {
    places.insert(places.end(), kUneven.begin(), kUneven.end());
  }
  for (const auto& place : places) {
    for (const std::size_t count : {1, 15, 16, 17, 100, 1000, 20000, 100001}) {
      for (const std::size_t piece : {std::size_t{64}, std::size_t{4096}, std::size_t{1} << 20U}) {
        for (std::size_t root = 0; root < (has_root && count < 1000 ? place.size() : 1); ++root) {
          SCOPED_TRACE(std::to_string(place.size()) + " ranks, root " + std::to_string(root) + ", " + std::to_string(count) +
                       " numbers in pieces of " + std::to_string(piece) + " bytes");
          Job job(place, count > 20000 ? piece * 512 : count > 1000 ? piece * 8 : piece);
          Case what(GetParam(), place.size(), root, count, (count + root) % 2 == 0);
          run(job, what, random);
          if (testing::Test::HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Kinds,
                         testing::Values(Kind::barrier, Kind::broadcast, Kind::all_gather, Kind::all_reduce, Kind::reduce,
                                         Kind::reduce_scatter));

// Whatever the number of ranks on a host, all ranks of a host together send what one rank would that is
// alone there.
TEST(HostsCollective, SendsToOtherHostsWhatSingleRanksWould) {
  constexpr std::size_t kCount = std::size_t{96} * 1024;  // a share for each of four rows
  constexpr std::size_t kBytes = kCount * sizeof(std::int32_t);
  std::mt19937 random(2);
  const auto sent = [&](Kind kind, std::size_t hosts, std::size_t ranks, std::size_t count) {
    std::vector<std::size_t> host_of;
    for (std::size_t rank = 0; rank < hosts * ranks; ++rank) {
      host_of.push_back(rank / ranks);
    }
    Job job(host_of, std::size_t{384} << 10U);
    Case what(kind, host_of.size(), 0, count, false);
    run(job, what, random);
    return job.bytes_sent;
  };
  for (const std::size_t hosts : {2, 3, 4}) {
    for (const std::size_t ranks : {1, 2, 4}) {
      EXPECT_EQ(sent(Kind::all_reduce, hosts, ranks, kCount), 2 * kBytes * (hosts - 1));
      EXPECT_EQ(sent(Kind::broadcast, hosts, ranks, kCount), kBytes * (hosts - 1));
      EXPECT_EQ(sent(Kind::reduce, hosts, ranks, kCount), kBytes * (hosts - 1));
      EXPECT_EQ(sent(Kind::all_gather, hosts, ranks, kCount / ranks), kBytes * hosts * (hosts - 1));
      EXPECT_EQ(sent(Kind::reduce_scatter, hosts, ranks, kCount / ranks), kBytes * hosts * (hosts - 1));
    }
  }
}

// The ranks of a host in their order, and then the host of the lowest rank before the other one.
TEST(HostsCollective, OfTwoHostsAddsInADocumentedOrder) {
  const std::vector<std::size_t> host_of{1, 0, 1, 0, 1};
  Job job(host_of, 4096);
  constexpr std::size_t kCount = 5000;
  std::mt19937 random(3);
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<std::vector<float>> numbers(host_of.size(), std::vector<float>(kCount));
  for (auto& each : numbers) {
    std::generate(each.begin(), each.end(), [&] { return values(random) * static_cast<float>(1U << random() % 20); });
  }
  std::vector<float> expected(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    expected[i] = (numbers[0][i] + numbers[2][i] + numbers[4][i]) + (numbers[1][i] + numbers[3][i]);
  }
  std::vector<std::shared_ptr<Probe>> ops;
  for (std::size_t rank = 0; rank < job.size(); ++rank) {
    const shm::Parts all(Part{numbers[rank].data(), kCount * sizeof(float)});
    ops.push_back(
        job.make(rank, {.kind = Kind::all_reduce, .type = shm::DataType::float32, .sources = all, .destinations = all}));
    ASSERT_TRUE(job.start(rank, *ops.back()).ok());
  }
  std::size_t ended = 0;
  for (int turns = 0; ended != job.size() && turns < 100000; ++turns) {
    ended = 0;
    for (std::size_t rank = 0; rank < job.size(); ++rank) {
      ended += job.poll(rank, *ops[rank]) == Op::State::ended ? 1 : 0;
    }
    job.exchange();
  }
  for (const auto& each : numbers) {
    EXPECT_EQ(each, expected);
  }
}

std::size_t held() { return mallinfo2().uordblks; }

class TwoHosts : public testing::Test {
 protected:
  TwoHosts() {
    for (std::size_t rank = 0; rank < 4; ++rank) {
      ops_.push_back(job_.make(rank, all_reduce_.movement(rank)));
    }
  }
  void start_all() {
    for (std::size_t rank = 0; rank < 4; ++rank) {
      ASSERT_TRUE(job_.start(rank, *ops_[rank]).ok());
    }
  }
  // Until nothing moves; true if all have ended.
  bool drive() {
    bool all = false;
    for (bool moves = true; moves && !all;) {
      moves = job_.exchange() != 0;
      all = true;
      for (std::size_t rank = 0; rank < 4; ++rank) {
        const Op::State state = job_.poll(rank, *ops_[rank]);
        moves = moves || state == Op::State::advanced;
        all = all && state == Op::State::ended;
      }
    }
    return all;
  }
  Numbers& memory(std::size_t rank) { return all_reduce_.memory[rank]; }

  // Until the ranks wait for the network, which then ends their collective of the row in doubt.
  void doubt() {
    start_all();
    for (int turn = 0; turn < 10; ++turn) {
      for (std::size_t rank = 0; rank < 4; ++rank) {
        job_.poll(rank, *ops_[rank]);
      }
    }
    ASSERT_GT(ucc.posted, 0U);
    ErrorLog::add("a message was not delivered");
  }

  static constexpr milliseconds kVerdict{30};
  Job job_{{0, 0, 1, 1}, 1024, {.verdict = kVerdict}};
  Case all_reduce_{Kind::all_reduce, 4, 0, 1000, true};
  std::vector<std::shared_ptr<Probe>> ops_;
};

TEST_F(TwoHosts, SaysWhatItWaitsFor) {
  EXPECT_EQ(ops_[0]->waits_for(), "earlier operations of its group, and none of its data was sent");
  start_all();
  EXPECT_EQ(ops_[0]->waits_for(), "");
  EXPECT_TRUE(drive());
}

TEST_F(TwoHosts, AnErrorOfUccFailsTheOperation) {
  ucc.post_says = UCC_ERR_NO_RESOURCE;
  start_all();
  drive();
  for (const std::size_t rank : {0, 2}) {  // those in the row that so little data goes through
    EXPECT_EQ(ops_[rank]->transport_status().code(), StatusCode::transport);
  }
}

// Rank 1 knows nothing of the doubt of rank 0, and would end well.
TEST_F(TwoHosts, DataInDoubtAreNotShownToTheOtherRanksOfTheHost) {
  doubt();
  const Deadline deadline = hard_limit();
  while (!(ops_[0]->domain().failed() && ops_[2]->domain().failed()) && !deadline.passed()) {
    EXPECT_FALSE(drive());
  }
  for (const std::size_t rank : {0, 2}) {
    EXPECT_NE(ops_[rank]->domain().failure().message().find("a message was not delivered"), std::string::npos);
  }
  for (const std::size_t rank : {1, 3}) {
    EXPECT_EQ(job_.poll(rank, *ops_[rank]), Op::State::in_flight);
    EXPECT_EQ(memory(rank), numbers_of(rank, 1000)) << "nothing may be stored";
  }
}

TEST_F(TwoHosts, DataInDoubtAreNotShownIfAMemberIsLost) {
  doubt();
  job_.engine().lose(ops_[0]->domain(), {2, Status(StatusCode::peer_gone, "rank 2 has died"), Loss::kUnknown});
  drive();
  ASSERT_TRUE(ops_[0]->domain().failed());
  EXPECT_EQ(ops_[0]->domain().failure().message(), "rank 2 has died");
  EXPECT_EQ(job_.poll(1, *ops_[1]), Op::State::in_flight);
}

TEST_F(TwoHosts, DataInDoubtAreBelievedIfSomebodyElseIsGone) {
  doubt();
  FailureDomain other("other group");
  job_.engine().lose(other, {1, Status(StatusCode::peer_gone, "rank 9 has died"), Loss::kUnknown});
  const Deadline deadline = hard_limit();
  while (!drive() && !deadline.passed()) {
  }
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(ops_[rank]->transport_status().ok());
    EXPECT_TRUE(ops_[rank]->doubt().ok()) << "the verdict is passed once";
    EXPECT_EQ(memory(rank), sum_of(4, 1000));
  }
  EXPECT_TRUE(job_.engine().left_behind()) << "UCC may still use its requests";
}

TEST_F(TwoHosts, WhatIsGivenUpIsNotWrittenAny) {
  start_all();
  ASSERT_TRUE(ops_[0]->take_back(Op::After::given_up));
  const Numbers mine(1000, 7);
  memory(0) = mine;
  drive();
  EXPECT_EQ(memory(0), mine);
  EXPECT_EQ(ops_[0]->transport_status().code(), StatusCode::transport);
}

TEST_F(TwoHosts, WhatGoesOnWithoutItsCallerGivesThePeersTheirData) {
  start_all();
  ASSERT_TRUE(ops_[0]->take_back(Op::After::goes_on));
  const Numbers mine(1000, 7);
  memory(0) = mine;
  ASSERT_TRUE(drive());
  EXPECT_EQ(memory(0), mine);
  for (std::size_t rank = 1; rank < 4; ++rank) {
    EXPECT_TRUE(ops_[rank]->transport_status().ok());
    EXPECT_EQ(memory(rank), sum_of(4, 1000));
  }
}

// Ranks of a host compare the size of the whole, and not only that of the piece.
TEST_F(TwoHosts, AnotherSizeIsNoticedBeforeAnythingIsStored) {
  Job job({0, 0, 1, 1}, 1024);
  Case longer(Kind::all_reduce, 4, 0, 8000, true);
  Case shorter(Kind::all_reduce, 4, 0, 6000, true);
  std::vector<std::shared_ptr<Probe>> ops;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    ops.push_back(job.make(rank, (rank == 1 ? shorter : longer).movement(rank)));
    ASSERT_TRUE(job.start(rank, *ops[rank]).ok());
  }
  for (int turn = 0; turn < 100; ++turn) {
    for (std::size_t rank = 0; rank < 4; ++rank) {
      job.poll(rank, *ops[rank]);
    }
    job.exchange();
  }
  for (const std::size_t rank : {0, 1}) {
    EXPECT_EQ(ops[rank]->transport_status().code(), StatusCode::mismatch);
    EXPECT_NE(ops[rank]->transport_status().message().find("a part of all_reduce"), std::string::npos);
  }
  EXPECT_EQ(longer.memory[0], numbers_of(0, 8000));
  EXPECT_EQ(shorter.memory[1], numbers_of(1, 6000));
}

TEST_F(TwoHosts, KeepsNoMemoryWhenItHasEnded) {
  if (held() == 0) {
    GTEST_SKIP() << "the allocator of a sanitizer does not tell what is held";
  }
  start_all();
  const std::size_t before = held();
  EXPECT_TRUE(drive());
  EXPECT_LT(held() + std::size_t{4} * 1024, before) << "a piece of each rank, at least";
}

// UCC may still use the memory of a piece, so no later piece gets that memory.
TEST_F(TwoHosts, IsNotDrainedWhileUccWorks) {
  start_all();
  job_.poll(1, *ops_[1]);
  job_.poll(0, *ops_[0]);
  ASSERT_GT(ucc.posted, 0U);
  EXPECT_FALSE(job_.is_drained(*ops_[0]));
  EXPECT_TRUE(drive());
  EXPECT_TRUE(job_.is_drained(*ops_[0]));
}

// In each kind that writes to memory of the caller, and at each moment.
class TakenBack : public testing::TestWithParam<Kind> {};

TEST_P(TakenBack, WritesNothingAnyMoreAndServesThePeers) {
  for (int polls = 0; polls < 12; ++polls) {
    Job job({0, 0, 1, 1}, 1024);
    Case what(GetParam(), 4, 0, 3000, false);
    std::vector<std::shared_ptr<Probe>> ops;
    for (std::size_t rank = 0; rank < 4; ++rank) {
      ops.push_back(job.make(rank, what.movement(rank)));
      ASSERT_TRUE(job.start(rank, *ops[rank]).ok());
    }
    for (int i = 0; i < polls; ++i) {
      for (std::size_t rank = 0; rank < 4; ++rank) {
        job.poll(rank, *ops[rank]);
      }
      job.exchange();
    }
    ASSERT_TRUE(ops[3]->take_back(Op::After::goes_on));
    std::fill(what.memory[3].begin(), what.memory[3].end(), 7);
    std::fill(what.results[3].begin(), what.results[3].end(), 7);
    std::size_t ended = 0;
    for (int turns = 0; ended != 4 && turns < 10000; ++turns) {
      ended = 0;
      job.exchange();
      for (std::size_t rank = 0; rank < 4; ++rank) {
        ended += job.poll(rank, *ops[rank]) == Op::State::ended ? 1 : 0;
      }
    }
    ASSERT_EQ(ended, 4U) << "taken back after " << polls;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      ASSERT_EQ(what.found(rank), what.expected[rank]) << "rank " << rank << ", taken back after " << polls;
    }
    const auto is_untouched = [](const Numbers& numbers) {
      return std::all_of(numbers.begin(), numbers.end(), [](std::int32_t number) { return number == 7; });
    };
    EXPECT_TRUE(is_untouched(what.memory[3]) && is_untouched(what.results[3])) << "taken back after " << polls;
  }
}

INSTANTIATE_TEST_SUITE_P(All, TakenBack,
                         testing::Values(Kind::broadcast, Kind::all_gather, Kind::all_reduce, Kind::reduce,
                                         Kind::reduce_scatter));

}  // namespace
}  // namespace torch_ucc::hosts
