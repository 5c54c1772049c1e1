#include "ops/reduce_rule.h"

#include <array>

namespace torch_ucc {
namespace {

using at::ScalarType;
using Op = c10d::ReduceOp::RedOpType;

enum class Kind : unsigned char { boolean, integer, real, complex };

struct TypeRow {
  ScalarType dtype;
  Kind kind;
  ScalarType compute;          // the type that UCC reduces instead
  ucc_datatype_t datatype;     // of `compute`
  ScalarType average_compute;  // like `compute`, but for AVG
};

constexpr std::array<TypeRow, 21> kTypes{{
    {ScalarType::Bool, Kind::boolean, ScalarType::Bool, UCC_DT_UINT8, ScalarType::Undefined},
    {ScalarType::Byte, Kind::integer, ScalarType::Byte, UCC_DT_UINT8, ScalarType::Long},
    {ScalarType::Char, Kind::integer, ScalarType::Char, UCC_DT_INT8, ScalarType::Long},
    {ScalarType::Short, Kind::integer, ScalarType::Short, UCC_DT_INT16, ScalarType::Long},
    {ScalarType::Int, Kind::integer, ScalarType::Int, UCC_DT_INT32, ScalarType::Long},
    {ScalarType::Long, Kind::integer, ScalarType::Long, UCC_DT_INT64, ScalarType::Long},
    {ScalarType::UInt16, Kind::integer, ScalarType::UInt16, UCC_DT_UINT16, ScalarType::Long},
    {ScalarType::UInt32, Kind::integer, ScalarType::UInt32, UCC_DT_UINT32, ScalarType::Long},
    {ScalarType::UInt64, Kind::integer, ScalarType::UInt64, UCC_DT_UINT64, ScalarType::UInt64},
    {ScalarType::Float, Kind::real, ScalarType::Float, UCC_DT_FLOAT32, ScalarType::Float},
    {ScalarType::Double, Kind::real, ScalarType::Double, UCC_DT_FLOAT64, ScalarType::Double},
    {ScalarType::Half, Kind::real, ScalarType::Float, UCC_DT_FLOAT32, ScalarType::Float},
    {ScalarType::BFloat16, Kind::real, ScalarType::Float, UCC_DT_FLOAT32, ScalarType::Float},
    {ScalarType::Float8_e4m3fn, Kind::real, ScalarType::Float, UCC_DT_FLOAT32, ScalarType::Float},
    {ScalarType::Float8_e4m3fnuz, Kind::real, ScalarType::Float, UCC_DT_FLOAT32, ScalarType::Float},
    {ScalarType::Float8_e5m2, Kind::real, ScalarType::Float, UCC_DT_FLOAT32, ScalarType::Float},
    {ScalarType::Float8_e5m2fnuz, Kind::real, ScalarType::Float, UCC_DT_FLOAT32, ScalarType::Float},
    {ScalarType::Float8_e8m0fnu, Kind::real, ScalarType::Float, UCC_DT_FLOAT32, ScalarType::Float},
    {ScalarType::ComplexHalf, Kind::complex, ScalarType::ComplexFloat, UCC_DT_FLOAT32_COMPLEX, ScalarType::ComplexFloat},
    {ScalarType::ComplexFloat, Kind::complex, ScalarType::ComplexFloat, UCC_DT_FLOAT32_COMPLEX, ScalarType::ComplexFloat},
    {ScalarType::ComplexDouble, Kind::complex, ScalarType::ComplexDouble, UCC_DT_FLOAT64_COMPLEX, ScalarType::ComplexDouble},
}};

struct OpRow {
  Op op;
  const char* name;
  std::optional<ucc_reduction_op_t> boolean;
  std::optional<ucc_reduction_op_t> integer;
  std::optional<ucc_reduction_op_t> real;
  std::optional<ucc_reduction_op_t> complex;
};

constexpr std::nullopt_t kNo = std::nullopt;

constexpr std::array<OpRow, 9> kOps{{
    {Op::SUM, "SUM", UCC_OP_MAX, UCC_OP_SUM, UCC_OP_SUM, UCC_OP_SUM},
    {Op::AVG, "AVG", kNo, UCC_OP_SUM, UCC_OP_SUM, UCC_OP_SUM},
    {Op::PRODUCT, "PRODUCT", UCC_OP_MIN, UCC_OP_PROD, UCC_OP_PROD, UCC_OP_PROD},
    {Op::MIN, "MIN", UCC_OP_MIN, UCC_OP_MIN, UCC_OP_MIN, kNo},
    {Op::MAX, "MAX", UCC_OP_MAX, UCC_OP_MAX, UCC_OP_MAX, kNo},
    {Op::BAND, "BAND", UCC_OP_BAND, UCC_OP_BAND, kNo, kNo},
    {Op::BOR, "BOR", UCC_OP_BOR, UCC_OP_BOR, kNo, kNo},
    {Op::BXOR, "BXOR", UCC_OP_BXOR, UCC_OP_BXOR, kNo, kNo},
    {Op::PREMUL_SUM, "PREMUL_SUM", kNo, kNo, UCC_OP_SUM, UCC_OP_SUM},
}};

const TypeRow* find_type(ScalarType dtype) {
  for (const auto& row : kTypes) {
    if (row.dtype == dtype && dtype != ScalarType::Undefined) {
      return &row;
    }
  }
  return nullptr;
}

const OpRow* find_op(Op op) {
  for (const auto& row : kOps) {
    if (row.op == op) {
      return &row;
    }
  }
  return nullptr;
}

std::optional<ucc_reduction_op_t> for_kind(const OpRow& row, Kind kind) {
  switch (kind) {
    case Kind::boolean:
      return row.boolean;
    case Kind::integer:
      return row.integer;
    case Kind::real:
      return row.real;
    case Kind::complex:
      return row.complex;
  }
  return std::nullopt;
}

}  // namespace

std::optional<ReduceRule> reduce_rule(ScalarType dtype, Op op) {
  const TypeRow* type = find_type(dtype);
  const OpRow* row = find_op(op);
  if (type == nullptr || row == nullptr) {
    return std::nullopt;
  }
  const auto ucc_op = for_kind(*row, type->kind);
  if (!ucc_op) {
    return std::nullopt;
  }
  ReduceRule rule;
  rule.compute = type->compute;
  rule.datatype = type->datatype;
  rule.op = *ucc_op;
  rule.divide = op == Op::AVG;
  rule.scale = op == Op::PREMUL_SUM;
  rule.order = type->kind == Kind::real && (op == Op::MIN || op == Op::MAX);
  if (rule.order) {
    rule.datatype = type->compute == ScalarType::Double ? UCC_DT_INT64 : UCC_DT_INT32;
  }
  if (rule.divide && type->average_compute != type->compute) {
    rule.compute = type->average_compute;
    rule.datatype = find_type(rule.compute)->datatype;
  }
  return rule;
}

const char* reduce_op_name(Op op) {
  const OpRow* row = find_op(op);
  return row == nullptr ? "unknown" : row->name;
}

}  // namespace torch_ucc
