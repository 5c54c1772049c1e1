// From a Status to the exceptions that users of torch.distributed catch.
#pragma once

#include <exception>
#include <string>

#include "base/status.h"
#include "compat/torch_compat.h"

namespace torch_ucc {

// Throws ValueError or NotImplementedError for a call that was wrong, and DistBackendError (a
// RuntimeError) for everything else.
[[noreturn]] inline void throw_for_user(const Status& status) {
  switch (status.code()) {
    case StatusCode::invalid:
      C10_THROW_ERROR(ValueError, status.message());
    case StatusCode::unsupported:
      C10_THROW_ERROR(NotImplementedError, status.message());
    default:
      C10_THROW_ERROR(DistBackendError, status.message());
  }
}

inline std::exception_ptr exception_for_user(const Status& status) {
  try {
    throw_for_user(status);
  } catch (...) {
    return std::current_exception();
  }
}

// Runs `body` and turns a StatusError into one of the exceptions above.
template <typename Body>
auto for_user(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const StatusError& error) {
    throw_for_user(error.status());
  }
}

}  // namespace torch_ucc
