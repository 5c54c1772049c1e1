#include "ops/prepared.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "ops/tensor_span.h"

namespace torch_ucc {
namespace {

TEST(ShareOf, CutsOnlyWhatIsMoreThanASegment) {
  Settings settings;
  settings.segment_bytes = 1 << 20;
  EXPECT_EQ(share_of(0, 2, settings), 0U);
  EXPECT_EQ(share_of(512 << 10, 2, settings), 0U) << "all parts are one segment";
  EXPECT_EQ(share_of(1 << 20, 2, settings), 512U << 10);
}

TEST(ShareOf, IsWholePagesAndAtLeastAsMuchAsPageFaultsAreWorth) {
  for (const std::size_t segment : {std::size_t{1}, std::size_t{1} << 20, std::size_t{8} << 20}) {
    Settings settings;
    settings.segment_bytes = segment;
    for (const int ranks : {1, 2, 3, 7, 64, 1000, 10000}) {
      const std::size_t share = share_of(std::size_t{1} << 30, ranks, settings);
      EXPECT_GT(share, 0U) << ranks;
      EXPECT_EQ(share % 4096, 0U) << ranks;
      EXPECT_LE(share * static_cast<std::size_t>(ranks), std::max<std::size_t>({segment, 16 << 20, 4096UL * 10000})) << ranks;
      if (ranks <= 64) {
        EXPECT_GE(share, 252U << 10) << ranks;
      }
    }
  }
}

TEST(Isolate, WhatIsSentIsReadOnceAndWhatComesIsStoredAtTheEnd) {
  const at::Tensor source = at::arange(4);
  const at::Tensor destination = at::zeros({4}, at::kLong);
  Prepared prepared;
  prepared.shield({source}, {destination});
  prepared.isolate();
  void* const from = prepared.pieces.sources.front().data;
  void* const to = prepared.pieces.destinations.front().data;
  EXPECT_NE(from, data_of(source));
  EXPECT_NE(to, data_of(destination));

  prepared.fill();
  source.fill_(-1);
  EXPECT_EQ(static_cast<std::int64_t*>(from)[3], 3) << "a later write of the caller does not count";
  static_cast<std::int64_t*>(to)[3] = 7;
  EXPECT_EQ(destination[3].item<std::int64_t>(), 0) << "nothing is written before the end";
  prepared.store();
  EXPECT_EQ(destination[3].item<std::int64_t>(), 7);
}

TEST(Isolate, MessagesAreOfMemoryOfTheOperation) {
  const at::Tensor sent = at::arange(4);
  const at::Tensor received = at::zeros({4}, at::kLong);
  Prepared prepared;
  prepared.messages = {{Message::Kind::send, 1, data_of(sent), bytes_of(sent)},
                       {Message::Kind::receive, 1, data_of(received), bytes_of(received)}};
  prepared.isolate();
  EXPECT_NE(prepared.messages[0].data, data_of(sent));
  EXPECT_NE(prepared.messages[1].data, data_of(received));
  EXPECT_EQ(prepared.loads.size(), 1U);
  EXPECT_TRUE(prepared.store);
}

TEST(Isolate, WhatWasStoredBeforeIsStoredAfter) {
  const at::Tensor destination = at::zeros({1}, at::kLong);
  Prepared prepared;
  prepared.shield({}, {destination});
  std::int64_t seen = -1;
  prepared.store = [&] { seen = destination.item<std::int64_t>(); };
  prepared.isolate();
  *static_cast<std::int64_t*>(prepared.pieces.destinations.front().data) = 5;
  prepared.store();
  EXPECT_EQ(seen, 5);
}

TEST(SeeThrough, OnlyIfEachSideIsOneTensor) {
  Prepared one;
  one.shield({at::zeros({4})}, {at::zeros({4})});
  one.see_through();
  EXPECT_TRUE(one.pieces.sources.empty() && one.pieces.destinations.empty());
  Prepared two;
  two.shield({at::zeros({4}), at::zeros({4})}, {at::zeros({8})});
  two.see_through();
  EXPECT_EQ(two.pieces.sources.size(), 2U);
}

TEST(HeldTensors, TheLastOneIsNotHeldTwice) {
  c10::SmallVector<at::Tensor, 2> held;
  const at::Tensor tensor = at::zeros({1});
  Held::keep(held, tensor);
  Held::keep(held, tensor);
  Held::keep(held, at::zeros({1}));
  EXPECT_EQ(held.size(), 2U);
}

TEST(LandingsTest, OutputsThatShareMemoryAreWrittenInTheOrderOfTheList) {
  const at::Tensor all = at::zeros({3});
  const Tensors outputs{all.slice(0, 0, 2), all.slice(0, 1, 3)};
  const Landings landings(outputs);
  ASSERT_TRUE(landings.are_others);
  copy_into(landings.tensors[0], at::full({2}, 1.0));
  copy_into(landings.tensors[1], at::full({2}, 2.0));
  Prepared prepared;
  landings.bring_back(prepared, outputs);
  EXPECT_TRUE(at::equal(all, at::zeros({3})));
  prepared.store();
  EXPECT_TRUE(at::equal(all, at::tensor({1.0F, 2.0F, 2.0F})));
}

TEST(LandingsTest, OutputsApartAreUsedThemselves) {
  const Tensors outputs{at::zeros({2}), at::zeros({2})};
  const Landings landings(outputs);
  EXPECT_FALSE(landings.are_others);
  EXPECT_TRUE(landings.tensors[1].is_same(outputs[1]));
  Prepared prepared;
  landings.bring_back(prepared, outputs);
  EXPECT_FALSE(prepared.store);
}

TEST(PlainSource, IsReadWhenTheOperationBegins) {
  const at::Tensor tensor = at::arange(4).view({2, 2});
  Held held;
  EXPECT_TRUE(plain_source(held, tensor).is_same(tensor));
  const at::Tensor copy = plain_source(held, tensor.t());
  tensor.fill_(9);
  held.fill();
  EXPECT_TRUE(at::equal(copy, at::full({2, 2}, 9, at::kLong)));
  copy_into(copy, at::zeros({2, 2}, at::kLong));
  held.fill();
  EXPECT_TRUE(at::equal(copy, at::zeros({2, 2}, at::kLong))) << "a second call does nothing";
}

// In every step each rank sends to one and receives from one, and after all steps it has met all.
TEST(InSteps, EveryRankMeetsEveryOther) {
  constexpr int kRanks = 5;
  std::vector<std::vector<int>> receivers(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    Call call;
    call.group = std::make_shared<GroupInfo>(GroupInfo{"world", rank, kRanks});
    in_steps(call, [&](int to, int from) {
      receivers[static_cast<std::size_t>(rank)].push_back(to);
      EXPECT_NE(from, rank);
    });
  }
  for (std::size_t step = 0; step + 1 < kRanks; ++step) {
    std::vector<bool> reached(kRanks);
    for (const auto& to : receivers) {
      reached[static_cast<std::size_t>(to.at(step))] = true;
    }
    EXPECT_EQ(std::count(reached.begin(), reached.end(), true), kRanks) << "step " << step;
  }
}

}  // namespace
}  // namespace torch_ucc
