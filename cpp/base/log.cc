#include "base/log.h"

#include <cstdio>

namespace torch_ucc {

void log_warning(const std::string& message) noexcept { std::fprintf(stderr, "[torch_ucc] %s\n", message.c_str()); }

}  // namespace torch_ucc
