// From a Status to the exceptions that users of torch.distributed catch.
#pragma once

#include <exception>
#include <string>

#include "base/forked.h"
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

// Why a forked child may not use a group of its parent.
inline constexpr const char* kForked = "this process was forked from a rank of the group, and is not a rank itself";

// Throws in a forked child. `what` names the call in the error.
inline void refuse_forked_child(const std::string& what) {
  if (in_forked_child()) {
    throw_for_user(Status(StatusCode::closed, what + ": " + kForked));
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
