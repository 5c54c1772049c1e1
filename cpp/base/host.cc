#include "base/host.h"

#include <unistd.h>

#include <array>
#include <fstream>

namespace torch_ucc {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string boot_id() {
  std::string id;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, id);
  return id;
}

}  // namespace torch_ucc
