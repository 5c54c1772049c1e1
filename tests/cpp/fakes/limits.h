// How long a test waits for what must happen: only to tell a hang from slowness, so no load can
// make a test fail.
#pragma once

#include "base/deadline.h"

namespace torch_ucc {

inline constexpr std::chrono::seconds kHardLimit{60};
inline Deadline hard_limit() { return Deadline::after(kHardLimit); }

}  // namespace torch_ucc
