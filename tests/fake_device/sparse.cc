// Sparse tensors. What torch does with indices and values asks for no device, so its functions for
// the CPU serve; what looks at elements is computed on the host.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace fake {
namespace {

template <c10::DispatchKey Key>
void as_if(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(Key), stack);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  return at::copy_sparse_to_sparse_(self, source, non_blocking);
}

at::Tensor coalesce(const at::Tensor& self) { return self.cpu().coalesce().to(self.device()); }

TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&as_if<c10::DispatchKey::SparseCPU>>());
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("copy_", &copy_);
  m.impl("_coalesce", &coalesce);
  for (const char* name : {"is_coalesced", "sparse_dim", "dense_dim", "indices", "values"}) {  // torch has others for any device
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&as_if<c10::DispatchKey::SparseCPU>>());
  }
}

TORCH_LIBRARY_IMPL(c10d, SparsePrivateUse1, m) {
  m.impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&as_if<c10::DispatchKey::PrivateUse1>>());
}

}  // namespace
}  // namespace fake
