// Lines on stderr for what a user must know although no call can return it.
#pragma once

#include <string>

namespace torch_ucc {

// One line, written in one piece: "[torch_ucc] <message>". Any thread; does not throw.
void log_warning(const std::string& message) noexcept;

}  // namespace torch_ucc
