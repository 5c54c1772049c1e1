// Translates UCC's status codes, all of them: a code we do not know is an error.
#pragma once

#include <ucc/api/ucc.h>

#include <string>

#include "base/status.h"

namespace torch_ucc {

// `what` names the call that returned `status`. UCC_OK is ok. UCC_INPROGRESS is not the end of an
// operation, so it is an internal error here.
inline Status from_ucc(ucc_status_t status, const std::string& what) {
  if (status == UCC_OK) {
    return {};
  }
  const std::string text = what + ": UCC says '" + ucc_status_string(status) + "' (" + std::to_string(status) + ")";
  switch (status) {
    case UCC_ERR_NOT_SUPPORTED:
    case UCC_ERR_NOT_IMPLEMENTED:
      return {StatusCode::unsupported, text};
    default:
      return {status < 0 ? StatusCode::transport : StatusCode::internal, text};
  }
}

}  // namespace torch_ucc
