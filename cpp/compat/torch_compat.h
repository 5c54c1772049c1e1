// Everything of torch that this project includes, and every test of its version. Supported: 2.11 to
// 2.15.
#pragma once

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/control_plane/Handlers.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>

#define TUCC_TORCH_RELEASE (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)

#if TUCC_TORCH_RELEASE < 211 || TUCC_TORCH_RELEASE > 215
#error "torch_ucc supports torch 2.11 to 2.15"
#endif

// Whether c10d::Backend has gather_single(), reconfigure(), windows and abort hooks.
#define TUCC_TORCH_HAS_RECONFIGURE (TUCC_TORCH_RELEASE >= 214)
// Whether torch asks a backend if it has abort hooks, and if it is initialised.
#define TUCC_TORCH_ASKS_BACKENDS (TUCC_TORCH_RELEASE >= 215)

namespace torch_ucc {

// The factor of PREMUL_SUM.
#if TUCC_TORCH_RELEASE < 213
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;
#else
using PreMulSumSupplement = c10d::PreMulSumSupplement;
#endif

// The OpType of reduce_scatter_tensor_coalesced. Torch 2.11 has none, so it is COALESCED there.
template <typename Type>
consteval Type reduce_scatter_tensor_coalesced() {
  if constexpr (requires { Type::REDUCE_SCATTER_TENSOR_COALESCED; }) {
    return Type::REDUCE_SCATTER_TENSOR_COALESCED;
  } else {
    return Type::COALESCED;
  }
}
inline constexpr c10d::OpType kReduceScatterTensorCoalescedType = reduce_scatter_tensor_coalesced<c10d::OpType>();

// Whether the stream is being captured: its work is recorded into a graph instead of run. Torch
// 2.11 cannot tell, so this is false there.
#if TUCC_TORCH_RELEASE < 212
inline bool is_capturing(const c10::Stream& /*stream*/) { return false; }
#else
inline bool is_capturing(const c10::Stream& stream) { return stream.is_capturing(); }
#endif

}  // namespace torch_ucc
