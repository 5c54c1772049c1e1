// torch_ucc.Options: what a caller may pass as pg_options.
#pragma once

#include <chrono>

#include "compat/torch_compat.h"

namespace torch_ucc {

struct Options final : c10d::Backend::Options {
  explicit Options(std::chrono::milliseconds timeout) : c10d::Backend::Options("ucc", timeout) {}
};

}  // namespace torch_ucc
