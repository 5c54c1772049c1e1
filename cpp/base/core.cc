#include "base/core.h"

#include <sched.h>

#include <optional>

namespace torch_ucc {
namespace {

std::optional<cpu_set_t> allowed() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof(mask), &mask) != 0) {
    return std::nullopt;  // more cores than the mask has bits
  }
  return mask;
}

bool allow(const cpu_set_t& mask) { return ::sched_setaffinity(0, sizeof(mask), &mask) == 0; }

}  // namespace

int current_core() { return ::sched_getcpu(); }

bool move_to_core(int core) {
  const std::optional<cpu_set_t> before = allowed();
  if (core < 0 || core >= CPU_SETSIZE || !before || !CPU_ISSET(core, &*before)) {
    return false;
  }
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(core, &only);
  return allow(only) && allow(*before);
}

std::string allowed_cores() {
  const std::optional<cpu_set_t> mask = allowed();
  std::string runs;  // "0-3,8-8,": ranges keep the text short
  for (int core = 0; mask && core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &*mask)) {
      const int first = core;
      while (core + 1 < CPU_SETSIZE && CPU_ISSET(core + 1, &*mask)) {
        ++core;
      }
      runs += std::to_string(first) + "-" + std::to_string(core) + ",";
    }
  }
  return runs;
}

}  // namespace torch_ucc
