#include "ops/tensor_span.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace torch_ucc {
namespace {

Call some_call() {
  Call call;
  call.seq = 3;
  call.group = std::make_shared<GroupInfo>(GroupInfo{"world", 1, 2});
  return call;
}

// What the call was refused with; empty if it was not.
template <typename Body>
std::string refusal(const Body& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(TensorSpan, NamesDtypesAsTorchDoes) {
  EXPECT_EQ(dtype_name(at::kFloat), "float32");
  EXPECT_EQ(dtype_name(at::kBFloat16), "bfloat16");
  EXPECT_EQ(std::string(lasting_dtype_name(at::kFloat)), "float32");
  EXPECT_EQ(std::string(lasting_dtype_name(at::ScalarType::Undefined)), "");
  EXPECT_EQ(lasting_dtype_name(at::kFloat), lasting_dtype_name(at::kFloat)) << "the same text, which stays";
  EXPECT_EQ(shape_text(at::zeros({2, 3}, at::kLong)), "int64[2, 3]");
  EXPECT_EQ(shape_text(at::zeros({}, at::kBool)), "bool[]");
}

TEST(TensorSpan, OnlyAContiguousTensorWithNothingPendingIsPlain) {
  const at::Tensor tensor = at::arange(12).view({3, 4});
  EXPECT_TRUE(is_plain(tensor));
  EXPECT_TRUE(is_plain(tensor[1]));
  EXPECT_TRUE(is_plain(at::empty({0, 3})));
  EXPECT_FALSE(is_plain(tensor.t()));
  EXPECT_FALSE(is_plain(tensor.select(1, 0)));
  const at::Tensor complex = at::ones({4}, at::kComplexFloat);
  EXPECT_FALSE(is_plain(complex.conj()));
  EXPECT_FALSE(is_plain(at::imag(complex.conj())));
}

TEST(TensorSpan, PlainIsTheTensorItselfOrACopyOfWhatItHolds) {
  const at::Tensor tensor = at::arange(12).view({3, 4});
  EXPECT_TRUE(plain(tensor).is_same(tensor));
  const at::Tensor turned = tensor.t();
  EXPECT_TRUE(is_plain(plain(turned)));
  EXPECT_TRUE(at::equal(plain(turned), turned));
  const at::Tensor conjugate = at::complex(at::ones({2}), at::ones({2})).conj();
  EXPECT_TRUE(at::equal(at::view_as_real(plain(conjugate)).select(1, 1), at::full({2}, -1.0)));
}

TEST(TensorSpan, ALandingIsPlainAndApartFromATensorThatIsNot) {
  const at::Tensor tensor = at::zeros({3, 4});
  EXPECT_TRUE(landing_for(tensor).is_same(tensor));
  const at::Tensor landing = landing_for(tensor.t());
  EXPECT_TRUE(is_plain(landing));
  EXPECT_EQ(landing.sizes(), (std::vector<std::int64_t>{4, 3}));
  EXPECT_FALSE(shares_memory(landing, tensor));
}

TEST(TensorSpan, MemoryIsSharedByOneByteAndMore) {
  const at::Tensor bytes = at::zeros({16}, at::kByte);
  const auto part = [&](std::int64_t from, std::int64_t to) { return bytes.slice(0, from, to); };
  EXPECT_TRUE(shares_memory(part(0, 8), part(7, 16)));
  EXPECT_TRUE(shares_memory(part(0, 16), part(4, 5)));
  EXPECT_TRUE(shares_memory(part(4, 5), part(0, 16)));
  EXPECT_FALSE(shares_memory(part(0, 8), part(8, 16))) << "side by side";
  EXPECT_FALSE(shares_memory(part(8, 16), part(0, 8)));
  EXPECT_FALSE(shares_memory(part(0, 0), part(0, 0))) << "nothing is no memory";
}

TEST(TensorSpan, CopiesWhateverTheShapesAndStrides) {
  const at::Tensor source = at::arange(6, at::kFloat);
  for (const at::Tensor& destination :
       {at::zeros({6}), at::zeros({2, 3}), at::zeros({3, 2}).t(), at::zeros({2, 3}, at::kDouble)}) {
    copy_into(destination, source);
    EXPECT_TRUE(at::equal(destination.reshape({6}).to(at::kFloat), source));
  }
  const at::Tensor turned = source.view({2, 3}).t();
  const at::Tensor destination = at::zeros({3, 2});
  copy_into(destination, turned);
  EXPECT_TRUE(at::equal(destination, turned));
}

// Few bytes are copied without torch, many by torch: both do the same.
TEST(TensorSpan, CopiesPartsOfFewAndOfManyElements) {
  for (const std::int64_t numel : {3, 100000}) {
    const at::Tensor all = at::arange(3 * numel, at::kInt);
    const at::Tensor part = at::zeros({numel}, at::kInt);
    copy_from_part(part, all, numel);
    EXPECT_TRUE(at::equal(part, all.narrow(0, numel, numel)));
    part.fill_(-1);
    copy_to_part(all, 2 * numel, part);
    EXPECT_TRUE(at::equal(all.narrow(0, 2 * numel, numel), part));
    EXPECT_TRUE(at::equal(all.narrow(0, 0, 2 * numel), at::arange(2 * numel, at::kInt))) << "and nothing beside it";
  }
}

TEST(TensorSpan, ACopyIsAWriteToAutograd) {
  for (const std::int64_t numel : {3, 100000}) {
    const at::Tensor tensor = at::zeros({numel});
    const auto before = tensor._version();
    copy_into(tensor, at::ones({numel}));
    EXPECT_GT(tensor._version(), before);
  }
}

TEST(TensorSpan, RefusesByNameWhatHasNoMemoryOfItsOwn) {
  const Call call = some_call();
  EXPECT_EQ(refusal([&] { check_sendable(call, at::zeros({2}), "the input"); }), "");
  EXPECT_NE(refusal([&] { check_sendable(call, at::Tensor(), "the input"); }).find("the input is not a defined tensor"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              check_sendable(call, at::zeros({2, 2}).to_sparse(), "the input");
            }).find("to_dense()"),
            std::string::npos);
  const at::Tensor freed = at::zeros({100});
  freed.storage().unsafeGetStorageImpl()->set_nbytes(8);
  EXPECT_NE(refusal([&] { check_sendable(call, freed, "the input"); }).find("needs a storage of 400 bytes"), std::string::npos);
}

TEST(TensorSpan, RefusesToWriteWhereElementsShareMemory) {
  const Call call = some_call();
  EXPECT_EQ(refusal([&] { check_writable(call, at::zeros({2, 2}).t(), "the output"); }), "");
  const std::string text = refusal([&] { check_writable(call, at::zeros({1}).expand({4}), "the output"); });
  EXPECT_NE(text.find("the output is expanded"), std::string::npos) << text;
  EXPECT_NE(text.find("seq 3 of group 'world' on rank 1 of 2"), std::string::npos) << text;
}

TEST(TensorSpan, RefusesAListOfMoreThanOne) {
  const Call call = some_call();
  std::vector<at::Tensor> one{at::zeros({1})};
  EXPECT_TRUE(only_tensor(call, one, "tensors").is_same(one.front()));
  std::vector<at::Tensor> two{at::zeros({1}), at::zeros({1})};
  EXPECT_NE(refusal([&] { only_tensor(call, two, "tensors"); }).find("exactly one tensor, not 2"), std::string::npos);
}

}  // namespace
}  // namespace torch_ucc
