// All ranks of a few hosts in one process. Between hosts, the test adds up what rows give to UCC.
#include "hosts/all_reduce.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "fakes/faces.h"
#include "fakes/fake_ucc.h"
#include "fakes/limits.h"
#include "fakes/rig.h"

namespace torch_ucc::hosts {
namespace {

class Probe final : public AllReduce {
 public:
  using AllReduce::AllReduce;
  std::string describe() const override { return "an all_reduce"; }
};

using Numbers = std::vector<std::int32_t>;

class Job {
 public:
  explicit Job(const std::vector<std::size_t>& ranks_by_host) {
    ucc = {};
    ucc.on_init = [this](std::size_t piece) { initialised_by_[current_].push_back(piece); };
    for (const std::size_t ranks : ranks_by_host) {
      rows_ = rows_ == 0 ? ranks : std::min(rows_, ranks);
    }
    for (std::size_t host = 0; host < ranks_by_host.size(); ++host) {
      faces_.push_back(std::make_unique<shm::Faces>(ranks_by_host[host]));
      for (std::size_t place = 0; place < ranks_by_host[host]; ++place) {
        const auto domain = std::make_shared<FailureDomain>("group");
        Levels levels{faces_.back()->board(place), nullptr, rows_};
        if (place < rows_) {
          levels.row = team(domain);
        }
        ranks_.push_back({host, place, levels, team(domain)});
      }
    }
    initialised_by_.resize(ranks_.size());
  }

  std::size_t size() const { return ranks_.size(); }
  const Levels& levels(std::size_t rank) const { return ranks_[rank].levels; }

  std::shared_ptr<Probe> make(std::size_t rank, Numbers& numbers, std::size_t piece_bytes) {
    Reduction reduction;
    reduction.memory = {numbers.data(), numbers.size() * sizeof(numbers[0])};
    reduction.element_size = sizeof(numbers[0]);
    reduction.type = shm::DataType::int32;
    reduction.ucc_type = UCC_DT_INT32;
    reduction.piece = piece_bytes;
    return std::make_shared<Probe>(ranks_[rank].team, ranks_[rank].levels, reduction);
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
  bool is_drained(Probe& op) {
    bool drained = false;
    with_baton([&](LoopToken& token) { drained = op.is_drained(token); });
    return drained;
  }

  // Ends the next all_reduce of each row that all its ranks have posted. Returns how many there were.
  std::size_t exchange() {
    std::size_t ended = 0;
    for (std::size_t row = 0; row < rows_; ++row) {
      std::vector<std::size_t> pieces;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (ranks_[rank].place == row && exchanged_[row] < initialised_by_[rank].size()) {
          pieces.push_back(initialised_by_[rank][exchanged_[row]]);
        }
      }
      if (pieces.size() != faces_.size()) {
        continue;
      }
      ++exchanged_[row];
      ++ended;
      const std::size_t count = ucc.initialised[pieces[0]].dst.info.count;
      std::vector<std::int32_t> sum(count);
      for (const std::size_t piece : pieces) {
        EXPECT_EQ(ucc.initialised[piece].dst.info.count, count);
        const auto* numbers = static_cast<const std::int32_t*>(ucc.initialised[piece].dst.info.buffer);
        std::transform(sum.begin(), sum.end(), numbers, sum.begin(), std::plus<>());
        bytes_exchanged += count * sizeof(sum[0]);
      }
      for (const std::size_t piece : pieces) {
        std::memcpy(ucc.initialised[piece].dst.info.buffer, sum.data(), count * sizeof(sum[0]));
        ucc.end(piece);
      }
    }
    return ended;
  }

  std::size_t bytes_exchanged = 0;  // by all ranks together

 private:
  struct Rank {
    std::size_t host;
    std::size_t place;
    Levels levels;
    std::shared_ptr<UccTeam> team;
  };

  void with_baton(const std::function<void(LoopToken&)>& body) { ASSERT_TRUE(rig_.engine.with_baton(hard_limit(), body)); }
  std::shared_ptr<UccTeam> team(const std::shared_ptr<FailureDomain>& domain) {
    auto made = std::make_shared<UccTeam>(5, std::vector<std::uint64_t>{0, 1}, 0, Bells{}, domain);
    with_baton([&](LoopToken& token) { EXPECT_EQ(made->create_post(token, context_), UCC_OK); });
    return made;
  }

  Rig rig_;
  UccContext context_;
  std::vector<std::unique_ptr<shm::Faces>> faces_;
  std::vector<Rank> ranks_;
  std::size_t rows_ = 0;
  std::size_t current_ = 0;                               // the rank that is driven
  std::vector<std::vector<std::size_t>> initialised_by_;  // by rank: its collectives of UCC
  std::array<std::size_t, 8> exchanged_{};                // by row
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

// In any order of the ranks' and the network's progress.
TEST(HostsAllReduce, GivesEachRankTheSumOfAll) {
  const std::vector<std::vector<std::size_t>> places{{2, 2}, {1, 3}, {3, 2, 4}, {1, 1}, {4, 4}};
  std::mt19937 random(1);
  for (const auto& place : places) {
    for (const std::size_t count : {1, 15, 16, 17, 100, 1000, 5000}) {
      for (const std::size_t piece : {std::size_t{64}, std::size_t{1000}, std::size_t{4096}, std::size_t{1} << 20U}) {
        Job job(place);
        std::vector<Numbers> numbers;
        std::vector<std::shared_ptr<Probe>> ops;
        for (std::size_t rank = 0; rank < job.size(); ++rank) {
          numbers.push_back(numbers_of(rank, count));
        }
        for (std::size_t rank = 0; rank < job.size(); ++rank) {
          ops.push_back(job.make(rank, numbers[rank], piece));
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
        ASSERT_EQ(left, 0U) << count << " numbers in pieces of " << piece << " bytes";
        for (std::size_t rank = 0; rank < job.size(); ++rank) {
          EXPECT_TRUE(ops[rank]->transport_status().ok()) << ops[rank]->transport_status().message();
          EXPECT_TRUE(job.is_drained(*ops[rank]));
          ASSERT_EQ(numbers[rank], sum_of(job.size(), count)) << "rank " << rank << " of " << job.size();
        }
        // Each row gives its share once on each host, whatever the ranks of a host
        EXPECT_EQ(job.bytes_exchanged, count * sizeof(numbers[0][0]) * place.size());
      }
    }
  }
}

class TwoHosts : public testing::Test {
 protected:
  TwoHosts() {
    for (std::size_t rank = 0; rank < 4; ++rank) {
      numbers_.push_back(numbers_of(rank, 1000));
      ops_.push_back(job_.make(rank, numbers_[rank], 1024));
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

  Job job_{{2, 2}};
  std::vector<Numbers> numbers_;
  std::vector<std::shared_ptr<Probe>> ops_;
};

TEST_F(TwoHosts, SaysWhatItWaitsFor) {
  EXPECT_EQ(ops_[0]->waits_for(), "earlier operations of its group, and nothing of it was sent");
  start_all();
  EXPECT_EQ(ops_[0]->waits_for(), "");
  EXPECT_TRUE(drive());
}

TEST_F(TwoHosts, AnErrorOfUccFailsTheOperation) {
  ucc.post_says = UCC_ERR_NO_RESOURCE;
  start_all();
  drive();
  for (const auto& op : ops_) {
    EXPECT_EQ(op->transport_status().code(), StatusCode::transport);
  }
}

TEST_F(TwoHosts, WhatIsGivenUpIsNotWrittenAny) {
  start_all();
  ASSERT_TRUE(ops_[0]->take_back(Op::After::given_up));
  const Numbers mine(1000, 7);
  numbers_[0] = mine;
  drive();
  EXPECT_EQ(numbers_[0], mine);
  EXPECT_EQ(ops_[0]->transport_status().code(), StatusCode::transport);
}

TEST_F(TwoHosts, WhatGoesOnWithoutItsCallerGivesThePeersTheirData) {
  start_all();
  ASSERT_TRUE(ops_[0]->take_back(Op::After::goes_on));
  const Numbers mine(1000, 7);
  numbers_[0] = mine;
  ASSERT_TRUE(drive());
  EXPECT_EQ(numbers_[0], mine);
  for (std::size_t rank = 1; rank < 4; ++rank) {
    EXPECT_TRUE(ops_[rank]->transport_status().ok());
    EXPECT_EQ(numbers_[rank], sum_of(4, 1000));
  }
}

// UCC may still use the memory of a share, so no later piece gets that memory.
TEST_F(TwoHosts, IsNotDrainedWhileUccWorks) {
  start_all();
  job_.poll(1, *ops_[1]);
  job_.poll(0, *ops_[0]);
  ASSERT_GT(ucc.posted, 0U);
  EXPECT_FALSE(job_.is_drained(*ops_[0]));
  EXPECT_TRUE(drive());
  EXPECT_TRUE(job_.is_drained(*ops_[0]));
}

}  // namespace
}  // namespace torch_ucc::hosts
