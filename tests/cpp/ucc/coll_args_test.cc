#include "ucc/coll_args.h"

#include <gtest/gtest.h>

#include <array>

namespace torch_ucc {
namespace {

bool in_place(const ucc_coll_args_t& args) {
  return (args.mask & UCC_COLL_ARGS_FIELD_FLAGS) != 0 && (args.flags & UCC_COLL_ARGS_FLAG_IN_PLACE) != 0;
}

class CollArgsTest : public testing::Test {
 protected:
  std::array<float, 8> data_{};
  std::array<float, 32> all_{};
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
