// torch_ucc.Options: what a caller may pass as pg_options.
#pragma once

#include <chrono>
#include <utility>

#include "base/settings.h"
#include "compat/torch_compat.h"

namespace torch_ucc {

struct Options final : c10d::Backend::Options {
  explicit Options(std::chrono::milliseconds timeout, NamedValues ucc_options = {}, NamedValues ucx_options = {})
      : c10d::Backend::Options("ucc", timeout), ucc(std::move(ucc_options)), ucx(std::move(ucx_options)) {}

#if TUCC_TORCH_HAS_RECONFIGURE
  c10::intrusive_ptr<c10d::Backend::Options> clone() const override { return c10::make_intrusive<Options>(*this); }
#endif

  // Sorted by name. The names have no UCC_ or UCX_ prefix.
  const NamedValues ucc;  // of UCC's context
  const NamedValues ucx;  // of UCX
};

}  // namespace torch_ucc
