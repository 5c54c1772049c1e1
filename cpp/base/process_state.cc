#include "base/process_state.h"

#include <fstream>
#include <string>

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

}  // namespace torch_ucc
