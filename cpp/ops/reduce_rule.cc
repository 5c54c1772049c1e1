#include "ops/reduce_rule.h"

#include <array>
#include <cmath>
#include <limits>

namespace torch_ucc {
namespace {

using at::ScalarType;
using Op = c10d::ReduceOp::RedOpType;
using Memory = shm::DataType;

enum class Kind : unsigned char { boolean, integer, real, complex };

struct TypeRow {
  ScalarType dtype;
  Kind kind;
  ScalarType compute;          // the type that UCC reduces instead
  ucc_datatype_t datatype;     // of `compute`
  ScalarType average_compute;  // like `compute`, but for AVG
  shm::DataType memory_type;   // of `dtype`, for shared memory
};

constexpr std::array<TypeRow, 21> kTypes{{
    {ScalarType::Bool, Kind::boolean, ScalarType::Bool, UCC_DT_UINT8, ScalarType::Undefined, Memory::uint8},
    {ScalarType::Byte, Kind::integer, ScalarType::Byte, UCC_DT_UINT8, ScalarType::Long, Memory::uint8},
    {ScalarType::Char, Kind::integer, ScalarType::Char, UCC_DT_INT8, ScalarType::Long, Memory::int8},
    {ScalarType::Short, Kind::integer, ScalarType::Short, UCC_DT_INT16, ScalarType::Long, Memory::int16},
    {ScalarType::Int, Kind::integer, ScalarType::Int, UCC_DT_INT32, ScalarType::Long, Memory::int32},
    {ScalarType::Long, Kind::integer, ScalarType::Long, UCC_DT_INT64, ScalarType::Long, Memory::int64},
    {ScalarType::UInt16, Kind::integer, ScalarType::UInt16, UCC_DT_UINT16, ScalarType::Long, Memory::uint16},
    {ScalarType::UInt32, Kind::integer, ScalarType::UInt32, UCC_DT_UINT32, ScalarType::Long, Memory::uint32},
    {ScalarType::UInt64, Kind::integer, ScalarType::UInt64, UCC_DT_UINT64, ScalarType::UInt64, Memory::uint64},
    {ScalarType::Float, Kind::real, ScalarType::Float, UCC_DT_FLOAT32, ScalarType::Float, Memory::float32},
    {ScalarType::Double, Kind::real, ScalarType::Double, UCC_DT_FLOAT64, ScalarType::Double, Memory::float64},
    {ScalarType::Half, Kind::real, ScalarType::Float, UCC_DT_FLOAT32, ScalarType::Float, Memory::float16},
    {ScalarType::BFloat16, Kind::real, ScalarType::Float, UCC_DT_FLOAT32, ScalarType::Float, Memory::bfloat16},
    {ScalarType::Float8_e4m3fn, Kind::real, ScalarType::Float, UCC_DT_FLOAT32, ScalarType::Float, Memory::float8_e4m3fn},
    {ScalarType::Float8_e4m3fnuz, Kind::real, ScalarType::Float, UCC_DT_FLOAT32, ScalarType::Float, Memory::float8_e4m3fnuz},
    {ScalarType::Float8_e5m2, Kind::real, ScalarType::Float, UCC_DT_FLOAT32, ScalarType::Float, Memory::float8_e5m2},
    {ScalarType::Float8_e5m2fnuz, Kind::real, ScalarType::Float, UCC_DT_FLOAT32, ScalarType::Float, Memory::float8_e5m2fnuz},
    {ScalarType::Float8_e8m0fnu, Kind::real, ScalarType::Float, UCC_DT_FLOAT32, ScalarType::Float, Memory::float8_e8m0fnu},
    {ScalarType::ComplexHalf, Kind::complex, ScalarType::ComplexFloat, UCC_DT_FLOAT32_COMPLEX, ScalarType::ComplexFloat,
     Memory::complex_half},
    {ScalarType::ComplexFloat, Kind::complex, ScalarType::ComplexFloat, UCC_DT_FLOAT32_COMPLEX, ScalarType::ComplexFloat,
     Memory::complex_float},
    {ScalarType::ComplexDouble, Kind::complex, ScalarType::ComplexDouble, UCC_DT_FLOAT64_COMPLEX, ScalarType::ComplexDouble,
     Memory::complex_double},
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

shm::ReduceOp memory_op_for(ucc_reduction_op_t op) {
  switch (op) {
    case UCC_OP_PROD:
      return shm::ReduceOp::product;
    case UCC_OP_MIN:
      return shm::ReduceOp::min;
    case UCC_OP_MAX:
      return shm::ReduceOp::max;
    case UCC_OP_BAND:
      return shm::ReduceOp::bit_and;
    case UCC_OP_BOR:
      return shm::ReduceOp::bit_or;
    case UCC_OP_BXOR:
      return shm::ReduceOp::bit_xor;
    default:
      return shm::ReduceOp::sum;
  }
}

// What overflows in float8_e4m3fn becomes NaN in torch 2.11, and the largest number in torch 2.13.
shm::DataType memory_type_for(ScalarType dtype) {
  static const bool saturates = !std::isnan(static_cast<float>(c10::Float8_e4m3fn(std::numeric_limits<float>::max())));
  const shm::DataType type = find_type(dtype)->memory_type;
  return saturates && type == Memory::float8_e4m3fn ? Memory::float8_e4m3fn_saturating : type;
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
  rule.memory_type = find_type(rule.compute)->memory_type;
  if (rule.order) {
    rule.memory_type = rule.datatype == UCC_DT_INT64 ? Memory::int64 : Memory::int32;
  }
  rule.memory_op = memory_op_for(rule.op);
  return rule;
}

ReduceRule ReduceRule::natively(ScalarType dtype) const {
  ReduceRule rule = *this;
  rule.compute = scale ? compute : dtype;
  rule.order = false;
  rule.divide = false;
  rule.memory_type = memory_type_for(rule.compute);
  rule.memory_op = divide ? shm::ReduceOp::average : memory_op_for(op);
  return rule;
}

ReduceRule ReduceRule::in_levels(ScalarType dtype, bool even) const {
  const bool is_native = order || (dtype == ScalarType::BFloat16 && !scale && (even || !divide));
  return is_native ? natively(dtype) : *this;
}

const char* reduce_op_name(Op op) {
  const OpRow* row = find_op(op);
  return row == nullptr ? "unknown" : row->name;
}

}  // namespace torch_ucc
