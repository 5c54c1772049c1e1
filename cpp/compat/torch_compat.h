// Everything of torch that this project includes, and every test of its version. Supported: 2.11 to 2.15.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/control_plane/Handlers.hpp>

#define TUCC_TORCH_RELEASE (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)

#if TUCC_TORCH_RELEASE < 211 || TUCC_TORCH_RELEASE > 215
#error "torch_ucc supports torch 2.11 to 2.15"
#endif

namespace torch_ucc {

// The factor of PREMUL_SUM.
#if TUCC_TORCH_RELEASE < 213
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;
#else
using PreMulSumSupplement = c10d::PreMulSumSupplement;
#endif

}  // namespace torch_ucc
