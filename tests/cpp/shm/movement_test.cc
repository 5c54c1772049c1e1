#include "shm/movement.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace torch_ucc::shm {
namespace {

using Kind = Movement::Kind;

Movement movement(Kind kind, std::size_t root = 0, DataType type = DataType::uint8, ReduceOp op = ReduceOp::sum) {
  Movement movement;
  movement.kind = kind;
  movement.root = root;
  movement.type = type;
  movement.op = op;
  return movement;
}

TEST(ShmMovement, KnowsItsParts) {
  std::array<char, 8> memory{};
  EXPECT_TRUE(Parts().empty());
  EXPECT_EQ(Parts().all().size(), 0U);
  const Parts one(Part{memory.data(), 3});
  EXPECT_FALSE(one.empty());
  ASSERT_EQ(one.all().size(), 1U);
  EXPECT_EQ(one.all().front().data, memory.data());
  EXPECT_EQ(one.only().bytes, 3U);
  const Parts each(std::vector<Part>{{memory.data(), 1}, {memory.data() + 1, 5}});
  EXPECT_FALSE(each.empty());
  EXPECT_EQ(each.all().size(), 2U);
  EXPECT_EQ(each.of(1).bytes, 5U);
  // A part of its own moves with the object.
  Parts copy = one;
  copy.all().front().bytes = 7;
  EXPECT_EQ(copy.only().bytes, 7U);
  EXPECT_EQ(one.only().bytes, 3U);
  EXPECT_FALSE(Parts(Part{}).empty()) << "an empty part is a part";
}

TEST(ShmMovement, NamesACopyOfItsPartsInstead) {
  std::array<char, 4> memory{'a', 'b', 'c', 'd'};
  Parts parts(std::vector<Part>{{memory.data() + 2, 2}, {memory.data(), 0}, {memory.data(), 1}});
  const auto copy = parts.replace_by_copy();
  memory.fill('x');
  EXPECT_EQ(std::string(static_cast<char*>(parts.of(0).data), 2), "cd");
  EXPECT_EQ(parts.of(1).bytes, 0U);
  EXPECT_EQ(*static_cast<char*>(parts.of(2).data), 'a');
}

// Ranks that call different collectives may begin with the same part.
TEST(ShmMovement, SaysWhatItIsAPartOf) {
  Movement whole = movement(Kind::reduce_scatter);
  Movement part = whole;
  part.part_of = {Kind::all_reduce, 100};
  Movement other = whole;
  other.part_of = {Kind::reduce, 100};
  EXPECT_EQ((std::set<std::uint64_t>{whole.call(), part.call(), other.call()}).size(), 3U);
  Movement elsewhere = other;
  elsewhere.root = 1;
  Movement longer = other;
  longer.part_of->bytes = 101;
  EXPECT_EQ((std::set<std::uint64_t>{other.call(), elsewhere.call(), longer.call()}).size(), 3U);
  EXPECT_EQ(describe_call(part.call(), 8).substr(0, 40), "a part of all_reduce, reduce_scatter of ");
}

TEST(ShmMovement, AddsUpWhatItGives) {
  Movement moves;
  EXPECT_EQ(moves.bytes_given(), 0U);
  moves.sources = Parts(std::vector<Part>{{nullptr, 1}, {nullptr, 0}, {nullptr, std::size_t{1} << 40U}});
  EXPECT_EQ(moves.bytes_given(), (std::uint64_t{1} << 40U) + 1);
  moves.destinations = Parts(Part{nullptr, 100});
  EXPECT_EQ(moves.bytes_given(), (std::uint64_t{1} << 40U) + 1);
}

TEST(ShmMovement, DiffersInItsCallFromEveryOther) {
  std::set<std::uint64_t> calls;
  std::size_t made = 0;
  for (unsigned kind = 0; kind <= static_cast<unsigned>(Kind::reduce_scatter); ++kind) {
    for (unsigned type = 0; type < kDataTypes; ++type) {
      for (unsigned op = 0; op < kReduceOps; ++op) {
        for (const std::size_t root : {0U, 1U, 255U, 65536U}) {
          if (kind == static_cast<unsigned>(Kind::reduce_scatter) && root != 0) {
            continue;  // it has no root
          }
          calls.insert(movement(static_cast<Kind>(kind), root, static_cast<DataType>(type), static_cast<ReduceOp>(op)).call());
          ++made;
        }
      }
    }
  }
  EXPECT_EQ(calls.size(), made);
  EXPECT_TRUE(movement(Kind::reduce_scatter).reduces());
  EXPECT_TRUE(movement(Kind::all_reduce).reduces());
  EXPECT_FALSE(movement(Kind::all_to_all).reduces());
}

TEST(ShmMovement, DiffersInItsCallFromAnotherSplitOfAReduceScatter) {
  std::set<std::uint64_t> calls;
  for (const auto& [first, second] : {std::pair(100U, 100U), std::pair(200U, 0U), std::pair(0U, 200U), std::pair(96U, 104U)}) {
    Movement moves = movement(Kind::reduce_scatter);
    moves.sources = Parts(std::vector<Part>{{nullptr, first}, {nullptr, second}});
    calls.insert(moves.call());
    EXPECT_EQ(moves.bytes_given(), 200U);
  }
  EXPECT_EQ(calls.size(), 4U);
}

TEST(ShmMovement, DescribesCalls) {
  EXPECT_EQ(describe_call(movement(Kind::barrier).call(), 0), "barrier of 0 bytes");
  EXPECT_EQ(describe_call(movement(Kind::broadcast, 3).call(), 12), "broadcast of 12 bytes, root 3");
  EXPECT_EQ(describe_call(movement(Kind::all_reduce, 0, DataType::bfloat16, ReduceOp::average).call(), 5000),
            "all_reduce of 5000 bytes of bfloat16, AVG");
  EXPECT_EQ(describe_call(movement(Kind::reduce, 7, DataType::complex_double, ReduceOp::bit_xor).call(), 16),
            "reduce of 16 bytes of complex128, BXOR, root 7");
  const std::array<const char*, 9> kinds{"barrier",    "broadcast",  "all_gather", "gather",        "scatter",
                                         "all_to_all", "all_reduce", "reduce",     "reduce_scatter"};
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    EXPECT_EQ(describe_call(movement(static_cast<Kind>(kind)).call(), 1).rfind(std::string(kinds.at(kind)) + " of 1 bytes", 0),
              0U);
  }
  const std::array<const char*, kReduceOps> ops{"SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG"};
  for (std::size_t op = 0; op < ops.size(); ++op) {
    const std::string text = describe_call(movement(Kind::reduce, 0, DataType::uint8, static_cast<ReduceOp>(op)).call(), 1);
    EXPECT_NE(text.find(std::string(", ") + ops.at(op) + ", root 0"), std::string::npos) << text;
  }
}

// A peer's line may hold anything.
TEST(ShmMovement, DescribesGarbage) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(describe_call(kMost, kMost),
            "a part of an unknown value, an unknown value of 18446744073709551615 bytes of an unknown value, an unknown value, "
            "hash of sizes and root 4294967295");
  EXPECT_EQ(describe_call(9, 0), "an unknown value of 0 bytes of uint8, SUM");
  EXPECT_EQ(describe_call(0xff00000806, 1), "all_reduce of 1 bytes of uint8, an unknown value, root 255");
  for (std::uint64_t call = 0; call < 0x1000000; call += 257) {
    EXPECT_FALSE(describe_call(call, call).empty());
  }
}

}  // namespace
}  // namespace torch_ucc::shm
