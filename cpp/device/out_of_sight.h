// Hides our own copies and kernels from tools that observe the calls of a thread.
#pragma once

#include "compat/torch_compat.h"

namespace torch_ucc {

// While an OutOfSight lives, the torch calls of this thread are hidden from autograd and from
// Python modes, which record or replace calls. The thread may be another caller's, and may hold the
// baton.
class OutOfSight {
  const c10::InferenceMode below_autograd_{true};
  const c10::impl::ExcludeDispatchKeyGuard below_python_{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

}  // namespace torch_ucc
