// The configuration of our own UCX context: the environment, overridden by the options of the
// caller.
#pragma once

#include <ucp/api/ucp.h>

#include "base/settings.h"
#include "base/status.h"
#include "base/unique_handle.h"
#include "ucx/status.h"

namespace torch_ucc {

using UcxConfig = UniqueHandle<ucp_config_t*, ucp_config_release>;

// Reads the variables that UCC reads for its own worker (UCC_UCX_* before UCX_*), so that UCX makes
// the same choices for our worker. Throws StatusError that names an option which UCX refuses.
inline UcxConfig read_ucx_config(const NamedValues& options) {
  UcxConfig config;
  throw_if_error(from_ucx(ucp_config_read("UCC", nullptr, config.out()), "ucp_config_read"));
  for (const auto& [name, value] : options) {
    throw_if_error(from_ucx(ucp_config_modify(config.get(), name.c_str(), value.c_str()), "ucp_config_modify " + name));
  }
  return config;
}

}  // namespace torch_ucc
