// Copies and kernels of our own, for whatever thread they are queued in.
#pragma once

#include "compat/torch_compat.h"

namespace torch_ucc {

// While it lives, what this thread queues is no business of whoever records or replaces the calls
// of torch in it: it may be another's, and hold the baton.
class OutOfSight {
  const c10::InferenceMode below_autograd_{true};
  const c10::impl::ExcludeDispatchKeyGuard below_python_{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

}  // namespace torch_ucc
