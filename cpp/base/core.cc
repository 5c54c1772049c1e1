#include "base/core.h"

#include <sched.h>

namespace torch_ucc {

int current_core() { return ::sched_getcpu(); }

bool move_to_core(int core) {
  cpu_set_t allowed;
  if (core < 0 || core >= CPU_SETSIZE || ::sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || !CPU_ISSET(core, &allowed)) {
    return false;
  }
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(core, &only);
  return ::sched_setaffinity(0, sizeof(only), &only) == 0 && ::sched_setaffinity(0, sizeof(allowed), &allowed) == 0;
}

}  // namespace torch_ucc
