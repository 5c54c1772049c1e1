#include "base/process_state.h"

#include <charconv>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace torch_ucc {

std::string process_stat(long pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  return text;
}

char process_state(long pid) {
  const std::string text = process_stat(pid);
  if (text.empty()) {
    return 'X';
  }
  // The name of the program may contain any character
  const std::size_t name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() ? text[name_end + 2] : '?';
}

bool handles_signal(long pid, int signal) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  std::uint64_t caught = 0;
  for (std::string line; std::getline(status, line);) {
    constexpr std::string_view kCaught = "SigCgt:\t";  // a bit for each signal
    if (line.starts_with(kCaught)) {
      std::from_chars(line.data() + kCaught.size(), line.data() + line.size(), caught, 16);
    }
  }
  return signal >= 1 && signal <= 64 && (caught >> static_cast<unsigned>(signal - 1) & 1U) != 0;
}

}  // namespace torch_ucc
