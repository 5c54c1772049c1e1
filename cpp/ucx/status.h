// Translates UCX's status codes.
#pragma once

#include <ucs/type/status.h>

#include <string>

#include "base/status.h"

namespace torch_ucc {

// `what` is the call that returned `status`. Every code but UCS_OK is an error of the transport.
inline Status from_ucx(ucs_status_t status, const std::string& what) {
  if (status == UCS_OK) {
    return {};
  }
  return {StatusCode::transport, what + ": UCX says '" + ucs_status_string(status) + "' (" + std::to_string(status) + ")"};
}

}  // namespace torch_ucc
