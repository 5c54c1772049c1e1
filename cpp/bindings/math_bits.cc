// Tensors for which torch keeps a bit that says "negated" or "conjugated" instead of new values,
// such as z.conj().imag.
//
// Torch's dispatcher replaces such a tensor by a copy with plain values before a backend sees it. A
// result that is written to the copy never reaches the caller. So a call of a ucc group that would
// write such a tensor is refused here, before the copy is made. A call that only reads the tensor
// goes on with the copy. Calls of other backends are not changed.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "compat/torch_compat.h"

namespace torch_ucc {
namespace {

bool has_bit(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_neg() || tensor.is_conj() || tensor._is_zerotensor());
}

at::Tensor without_bits(const at::Tensor& tensor) {
  if (!has_bit(tensor)) {
    return tensor;
  }
  return tensor._is_zerotensor() ? at::zeros(tensor.sizes(), tensor.options()) : tensor.resolve_conj().resolve_neg();
}

std::vector<at::Tensor> tensors_of(const c10::IValue& argument) {
  if (argument.isTensor()) {
    return {argument.toTensor()};
  }
  return argument.isTensorList() ? argument.toTensorVector() : std::vector<at::Tensor>();
}

class BoxedCall {
 public:
  BoxedCall(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : schema_(op.schema()), arguments_(stack.data() + stack.size() - schema_.arguments().size()) {}

  // Whether the call writes its first argument. A rank that only sends it does not.
  bool writes_first() const {
    const std::int64_t root = named("root_rank", -1);
    if (schema_.name() == "c10d::broadcast_") {
      return group()->getRank() != root;
    }
    if (schema_.name() == "c10d::reduce_") {
      return group()->getRank() == root;
    }
    return schema_.name() != "c10d::send";
  }

  void refuse_if_ours() const {
    const std::vector<at::Tensor> written = tensors_of(arguments_[0]);
    const auto at = std::find_if(written.begin(), written.end(), has_bit);
    if (at == written.end() || !writes_first()) {
      return;
    }
    const auto backend = group()->getBackend(at->device().type());
    if (backend->getBackendName() == "ucc") {
      C10_THROW_ERROR(ValueError, "c10d's " + schema_.name().substr(schema_.name().rfind(':') + 1) + " seq " +
                                      std::to_string(backend->getSequenceNumberForGroup() + 1) + " of group '" +
                                      backend->getGroupUid() + "' on rank " + std::to_string(group()->getRank()) + " of " +
                                      std::to_string(group()->getSize()) +
                                      ": a tensor for the result has the conjugate or negative bit set, so PyTorch would write "
                                      "the result to a copy of it: call resolve_conj() or resolve_neg() first");
    }
  }

  void resolve_arguments() {
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      if (arguments_[i].isTensor()) {
        arguments_[i] = without_bits(arguments_[i].toTensor());
      } else if (arguments_[i].isTensorList()) {
        c10::List<at::Tensor> resolved;
        for (const at::Tensor& tensor : arguments_[i].toTensorVector()) {
          resolved.push_back(without_bits(tensor));
        }
        arguments_[i] = std::move(resolved);
      }
    }
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group() const {
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      if (schema_.arguments()[i].name() == "process_group") {
        return arguments_[i].toCustomClass<c10d::ProcessGroup>();
      }
    }
    TORCH_CHECK(false, schema_.name(), " has no process group");
  }

  std::int64_t named(const char* name, std::int64_t otherwise) const {
    for (std::size_t i = 0; i < schema_.arguments().size(); ++i) {
      if (schema_.arguments()[i].name() == name) {
        return arguments_[i].toInt();
      }
    }
    return otherwise;
  }

  const c10::FunctionSchema& schema_;
  c10::IValue* const arguments_;
};

void with_plain_values(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  BoxedCall call(op, *stack);
  call.refuse_if_ours();
  call.resolve_arguments();
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, keys.highestPriorityTypeId()), stack);
}

constexpr const char* kOperations[] = {
    "_allgather_base_",
    "_reduce_scatter_base_",
    "allgather_into_tensor_coalesced_",
    "allreduce_",
    "allreduce_coalesced_",
    "alltoall_",
    "alltoall_base_",
    "broadcast_",
    "recv_",
    "recv_any_source_",
    "reduce_",
    "reduce_scatter_",
    "reduce_scatter_tensor_coalesced_",
    "scatter_",
};

void add_to(torch::Library& library) {
  for (const char* const name : kOperations) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&with_plain_values>());
  }
}

TORCH_LIBRARY_IMPL(c10d, Negative, library) { add_to(library); }
TORCH_LIBRARY_IMPL(c10d, Conjugate, library) { add_to(library); }
TORCH_LIBRARY_IMPL(c10d, ZeroTensor, library) { add_to(library); }

}  // namespace
}  // namespace torch_ucc
