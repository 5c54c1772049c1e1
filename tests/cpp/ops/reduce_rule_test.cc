#include "ops/reduce_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

namespace torch_ucc {
namespace {

using Op = c10d::ReduceOp::RedOpType;

const std::vector<at::ScalarType> kIntegers{at::kByte,
                                            at::kChar,
                                            at::kShort,
                                            at::kInt,
                                            at::kLong,
                                            at::ScalarType::UInt16,
                                            at::ScalarType::UInt32,
                                            at::ScalarType::UInt64};
const std::vector<at::ScalarType> kNarrow{at::kHalf,
                                          at::kBFloat16,
                                          at::ScalarType::Float8_e4m3fn,
                                          at::ScalarType::Float8_e4m3fnuz,
                                          at::ScalarType::Float8_e5m2,
                                          at::ScalarType::Float8_e5m2fnuz,
                                          at::ScalarType::Float8_e8m0fnu};
const std::vector<at::ScalarType> kComplex{at::kComplexHalf, at::kComplexFloat, at::kComplexDouble};
const std::vector<Op> kOps{Op::SUM, Op::AVG, Op::PRODUCT, Op::MIN, Op::MAX, Op::BAND, Op::BOR, Op::BXOR, Op::PREMUL_SUM};

std::vector<at::ScalarType> reals() {
  std::vector<at::ScalarType> all = kNarrow;
  all.insert(all.end(), {at::kFloat, at::kDouble});
  return all;
}

std::vector<at::ScalarType> all_types() {
  std::vector<at::ScalarType> all = reals();
  all.insert(all.end(), kIntegers.begin(), kIntegers.end());
  all.insert(all.end(), kComplex.begin(), kComplex.end());
  all.push_back(at::kBool);
  return all;
}

std::size_t size_of(ucc_datatype_t datatype) {
  const std::map<ucc_datatype_t, std::size_t> sizes{
      {UCC_DT_INT8, 1},    {UCC_DT_UINT8, 1},   {UCC_DT_INT16, 2},           {UCC_DT_UINT16, 2},
      {UCC_DT_INT32, 4},   {UCC_DT_UINT32, 4},  {UCC_DT_INT64, 8},           {UCC_DT_UINT64, 8},
      {UCC_DT_FLOAT32, 4}, {UCC_DT_FLOAT64, 8}, {UCC_DT_FLOAT32_COMPLEX, 8}, {UCC_DT_FLOAT64_COMPLEX, 16}};
  return sizes.at(datatype);
}

// The operations for which each of these types has a rule must be exactly those.
void expect_ops(const std::vector<at::ScalarType>& types, const std::vector<Op>& ops) {
  for (const at::ScalarType type : types) {
    for (const Op op : kOps) {
      EXPECT_EQ(reduce_rule(type, op).has_value(), std::find(ops.begin(), ops.end(), op) != ops.end())
          << type << " " << reduce_op_name(op);
    }
  }
}

TEST(ReduceRule, IsThereForThePairsThatMeanSomething) {
  expect_ops({at::kBool}, {Op::SUM, Op::PRODUCT, Op::MIN, Op::MAX, Op::BAND, Op::BOR, Op::BXOR});
  expect_ops(kIntegers, {Op::SUM, Op::AVG, Op::PRODUCT, Op::MIN, Op::MAX, Op::BAND, Op::BOR, Op::BXOR});
  expect_ops(reals(), {Op::SUM, Op::AVG, Op::PRODUCT, Op::MIN, Op::MAX, Op::PREMUL_SUM});
  expect_ops(kComplex, {Op::SUM, Op::AVG, Op::PRODUCT, Op::PREMUL_SUM});
}

TEST(ReduceRule, IsNotThereForAnotherTypeOrOperation) {
  expect_ops({at::ScalarType::Undefined, at::kQInt8, at::ScalarType::Bits8, at::ScalarType::Float4_e2m1fn_x2}, {});
  EXPECT_FALSE(reduce_rule(at::kFloat, Op::UNUSED));
  EXPECT_STREQ(reduce_op_name(Op::UNUSED), "unknown");
}

TEST(ReduceRule, ReducesATypeOfTheSizeThatItNames) {
  for (const at::ScalarType type : all_types()) {
    for (const Op op : kOps) {
      if (const auto rule = reduce_rule(type, op)) {
        EXPECT_EQ(size_of(rule->datatype), c10::elementSize(rule->compute)) << type << " " << reduce_op_name(op);
        EXPECT_NE(rule->compute, at::ScalarType::Undefined);
      }
    }
  }
}

TEST(ReduceRule, ComputesNarrowFloatsAsFloat32) {
  for (const at::ScalarType type : kNarrow) {
    EXPECT_EQ(reduce_rule(type, Op::SUM)->compute, at::kFloat) << type;
    EXPECT_EQ(reduce_rule(type, Op::SUM)->datatype, UCC_DT_FLOAT32) << type;
  }
  EXPECT_EQ(reduce_rule(at::kComplexHalf, Op::SUM)->compute, at::kComplexFloat);
}

TEST(ReduceRule, SumsAnAverageOfIntegersIn64Bits) {
  for (const at::ScalarType type : kIntegers) {
    const auto rule = reduce_rule(type, Op::AVG);
    ASSERT_TRUE(rule) << type;
    EXPECT_TRUE(rule->divide);
    EXPECT_EQ(rule->compute, type == at::ScalarType::UInt64 ? type : at::kLong) << type;
    EXPECT_EQ(reduce_rule(type, Op::SUM)->compute, type) << "a sum wraps in its own type";
  }
}

TEST(ReduceRule, ComparesFloatsAsIntegersOfTheirSize) {
  for (const at::ScalarType type : reals()) {
    for (const Op op : {Op::MIN, Op::MAX}) {
      const auto rule = reduce_rule(type, op);
      EXPECT_TRUE(rule->order) << type;
      EXPECT_EQ(rule->datatype, type == at::kDouble ? UCC_DT_INT64 : UCC_DT_INT32) << type;
      EXPECT_EQ(rule->op, op == Op::MIN ? UCC_OP_MIN : UCC_OP_MAX);
    }
  }
  EXPECT_FALSE(reduce_rule(at::kInt, Op::MIN)->order);
}

// Its bytes are 0 and 1.
TEST(ReduceRule, ReducesBooleansByOperationsThatLeave0And1) {
  EXPECT_EQ(reduce_rule(at::kBool, Op::SUM)->op, UCC_OP_MAX);
  EXPECT_EQ(reduce_rule(at::kBool, Op::PRODUCT)->op, UCC_OP_MIN);
  EXPECT_EQ(reduce_rule(at::kBool, Op::BXOR)->op, UCC_OP_BXOR);
}

TEST(ReduceRule, StaysOnTheHostWhereADeviceCannotComputeIt) {
  EXPECT_FALSE(reduce_rule(at::kFloat, Op::MAX)->works_on_devices());
  EXPECT_FALSE(reduce_rule(at::ScalarType::UInt64, Op::AVG)->works_on_devices());
  EXPECT_TRUE(reduce_rule(at::ScalarType::UInt64, Op::SUM)->works_on_devices());
  EXPECT_TRUE(reduce_rule(at::kBFloat16, Op::AVG)->works_on_devices());
}

TEST(ReduceRule, ScalesByTheFactorOfTheCallerOnlyWhereThereIsOne) {
  for (const Op op : kOps) {
    if (const auto rule = reduce_rule(at::kFloat, op)) {
      EXPECT_EQ(rule->scale, op == Op::PREMUL_SUM);
      EXPECT_EQ(rule->divide, op == Op::AVG);
    }
  }
}

TEST(ReduceRule, HasAKernelInSharedMemoryForEachPair) {
  for (const at::ScalarType dtype : all_types()) {
    for (const Op op : kOps) {
      if (const auto rule = reduce_rule(dtype, op)) {
        const ReduceRule native = rule->natively(dtype);
        EXPECT_NE(shm::reduce_kernel(native.memory_type, native.memory_op), nullptr) << dtype << " " << reduce_op_name(op);
        EXPECT_EQ(shm::size_of(native.memory_type), c10::elementSize(native.compute)) << dtype;
        EXPECT_FALSE(native.divide || native.order);
      }
    }
  }
}

TEST(ReduceRule, OverflowsInSharedMemoryAsTorchDoes) {
  const ReduceRule rule = reduce_rule(at::ScalarType::Float8_e4m3fn, Op::SUM)->natively(at::ScalarType::Float8_e4m3fn);
  const c10::Float8_e4m3fn large(400.0F);
  const void* const sources[] = {&large, &large};
  c10::Float8_e4m3fn sum;
  shm::reduce_kernel(rule.memory_type, rule.memory_op)(&sum, sources, 2, 1);
  EXPECT_EQ(sum.x, c10::Float8_e4m3fn(800.0F).x);
}

}  // namespace
}  // namespace torch_ucc
