// Translates UCX's status codes.
#pragma once

#include <ucs/type/status.h>

#include <string>

#include "base/status.h"

namespace torch_ucc {

// Every code but UCS_OK is an error of the transport.
inline Status from_ucx(ucs_status_t status) {
  if (status == UCS_OK) {
    return {};
  }
  return {StatusCode::transport, std::string("UCX says '") + ucs_status_string(status) + "' (" + std::to_string(status) + ")"};
}

// `what` is the call that returned `status`.
inline Status from_ucx(ucs_status_t status, const std::string& what) {
  const Status said = from_ucx(status);
  return said.ok() ? said : Status(said.code(), what + ": " + said.message());
}

}  // namespace torch_ucc
