#include "ucc/coll_args.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace torch_ucc {
namespace {

bool in_place(const ucc_coll_args_t& args) {
  return (args.mask & UCC_COLL_ARGS_FIELD_FLAGS) != 0 && (args.flags & UCC_COLL_ARGS_FLAG_IN_PLACE) != 0;
}

// Both widths: UCC looks at them one by one.
bool in_64_bits(const ucc_coll_args_t& args) {
  constexpr std::uint64_t kBoth = UCC_COLL_ARGS_FLAG_COUNT_64BIT | UCC_COLL_ARGS_FLAG_DISPLACEMENTS_64BIT;
  return (args.mask & UCC_COLL_ARGS_FIELD_FLAGS) != 0 && (args.flags & kBoth) == kBoth;
}

void expect_side(const ucc_coll_buffer_info_t& side, const void* buffer, std::size_t count, ucc_datatype_t datatype) {
  EXPECT_EQ(side.buffer, buffer);
  EXPECT_EQ(side.count, count);
  EXPECT_EQ(side.datatype, datatype);
  EXPECT_EQ(side.mem_type, UCC_MEMORY_TYPE_HOST);
}

void expect_side(const ucc_coll_buffer_info_v_t& side, const void* buffer, const std::uint64_t* counts,
                 const std::uint64_t* displacements, ucc_datatype_t datatype) {
  EXPECT_EQ(side.buffer, buffer);
  EXPECT_EQ(static_cast<const void*>(side.counts), counts);
  EXPECT_EQ(static_cast<const void*>(side.displacements), displacements);
  EXPECT_EQ(side.datatype, datatype);
  EXPECT_EQ(side.mem_type, UCC_MEMORY_TYPE_HOST);
}

class CollArgsTest : public testing::Test {
 protected:
  std::array<float, 8> data_{};
  std::array<float, 32> all_{};
  const std::array<std::uint64_t, 4> counts_ = {8, 0, 16, 8};
  const std::array<std::uint64_t, 4> displacements_ = {0, 8, 8, 24};
};

TEST_F(CollArgsTest, AllreduceIsInPlace) {
  const auto args = allreduce_in_place_args(data_.data(), 8, UCC_DT_FLOAT32, UCC_OP_MAX, UCC_MEMORY_TYPE_HOST);
  EXPECT_EQ(args.coll_type, UCC_COLL_TYPE_ALLREDUCE);
  EXPECT_EQ(args.op, UCC_OP_MAX);
  EXPECT_TRUE(in_place(args));
  for (const auto& side : {args.src.info, args.dst.info}) {
    EXPECT_EQ(side.buffer, data_.data());
    EXPECT_EQ(side.count, 8U);
    EXPECT_EQ(side.datatype, UCC_DT_FLOAT32);
    EXPECT_EQ(side.mem_type, UCC_MEMORY_TYPE_HOST);
  }
}

TEST_F(CollArgsTest, BroadcastCountsBytesOfOneBuffer) {
  const auto args = broadcast_args(data_.data(), sizeof(data_), 3, UCC_MEMORY_TYPE_HOST);
  EXPECT_EQ(args.coll_type, UCC_COLL_TYPE_BCAST);
  EXPECT_EQ(args.root, 3U);
  EXPECT_EQ(args.src.info.buffer, data_.data());
  EXPECT_EQ(args.src.info.count, sizeof(data_));
  EXPECT_EQ(args.src.info.datatype, UCC_DT_UINT8);
  EXPECT_EQ(args.mask, 0U);
}

TEST_F(CollArgsTest, AllgatherCountsTheBytesOfAllRanksInItsResult) {
  const auto args = allgather_args(data_.data(), all_.data(), sizeof(data_), 4, UCC_MEMORY_TYPE_HOST);
  EXPECT_EQ(args.coll_type, UCC_COLL_TYPE_ALLGATHER);
  EXPECT_EQ(args.src.info.buffer, data_.data());
  EXPECT_EQ(args.src.info.count, sizeof(data_));
  EXPECT_EQ(args.dst.info.buffer, all_.data());
  EXPECT_EQ(args.dst.info.count, sizeof(all_));
  EXPECT_FALSE(in_place(args));
}

TEST_F(CollArgsTest, AllgatherWithoutASourceIsInPlace) {
  EXPECT_TRUE(in_place(allgather_args(nullptr, all_.data(), sizeof(data_), 4, UCC_MEMORY_TYPE_HOST)));
}

TEST_F(CollArgsTest, AllgathervHasTheBytesOfEachRankAtItsPlace) {
  const auto args = allgatherv_args(data_.data(), 8, all_.data(), counts_.data(), displacements_.data(), UCC_MEMORY_TYPE_HOST);
  EXPECT_EQ(args.coll_type, UCC_COLL_TYPE_ALLGATHERV);
  expect_side(args.src.info, data_.data(), 8, UCC_DT_UINT8);
  expect_side(args.dst.info_v, all_.data(), counts_.data(), displacements_.data(), UCC_DT_UINT8);
  EXPECT_TRUE(in_64_bits(args));
  EXPECT_FALSE(in_place(args));
}

TEST_F(CollArgsTest, ReduceIsInPlaceAtTheRootAndOnlyReadsElsewhere) {
  const auto root = reduce_args(data_.data(), 8, UCC_DT_FLOAT32, UCC_OP_PROD, 2, true, UCC_MEMORY_TYPE_HOST);
  expect_side(root.dst.info, data_.data(), 8, UCC_DT_FLOAT32);
  EXPECT_EQ(root.src.info.buffer, nullptr);
  EXPECT_TRUE(in_place(root));
  const auto other = reduce_args(data_.data(), 8, UCC_DT_FLOAT32, UCC_OP_PROD, 2, false, UCC_MEMORY_TYPE_HOST);
  expect_side(other.src.info, data_.data(), 8, UCC_DT_FLOAT32);
  EXPECT_EQ(other.dst.info.buffer, nullptr);
  EXPECT_FALSE(in_place(other));
  for (const auto& args : {root, other}) {
    EXPECT_EQ(args.coll_type, UCC_COLL_TYPE_REDUCE);
    EXPECT_EQ(args.op, UCC_OP_PROD);
    EXPECT_EQ(args.root, 2U);
  }
}

TEST_F(CollArgsTest, ReduceScatterCountsTheElementsOfAllRanksInItsSource) {
  const auto args = reduce_scatter_args(all_.data(), data_.data(), 8, 4, UCC_DT_FLOAT32, UCC_OP_SUM, UCC_MEMORY_TYPE_HOST);
  EXPECT_EQ(args.coll_type, UCC_COLL_TYPE_REDUCE_SCATTER);
  EXPECT_EQ(args.op, UCC_OP_SUM);
  expect_side(args.src.info, all_.data(), 32, UCC_DT_FLOAT32);
  expect_side(args.dst.info, data_.data(), 8, UCC_DT_FLOAT32);
  EXPECT_FALSE(in_place(args));
}

TEST_F(CollArgsTest, ReduceScattervCountsTheElementsOfEachRank) {
  const auto args =
      reduce_scatterv_args(all_.data(), 32, data_.data(), counts_.data(), UCC_DT_INT64, UCC_OP_MIN, UCC_MEMORY_TYPE_HOST);
  EXPECT_EQ(args.coll_type, UCC_COLL_TYPE_REDUCE_SCATTERV);
  EXPECT_EQ(args.op, UCC_OP_MIN);
  expect_side(args.src.info, all_.data(), 32, UCC_DT_INT64);
  expect_side(args.dst.info_v, data_.data(), counts_.data(), nullptr, UCC_DT_INT64);
  EXPECT_TRUE(in_64_bits(args));
  EXPECT_FALSE(in_place(args));
}

// Fields that a mask does not announce must be zero all the same: UCC reads some of them.
TEST_F(CollArgsTest, WhatIsNotSetIsZero) {
  const auto args = barrier_args();
  EXPECT_EQ(args.coll_type, UCC_COLL_TYPE_BARRIER);
  EXPECT_EQ(args.mask, 0U);
  EXPECT_EQ(args.flags, 0U);
  EXPECT_EQ(args.timeout, 0.0);
  EXPECT_EQ(args.cb.cb, nullptr);
  EXPECT_EQ(args.src.info.buffer, nullptr);
  EXPECT_EQ(args.dst.info.count, 0U);
}

}  // namespace
}  // namespace torch_ucc
