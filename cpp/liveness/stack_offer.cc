#include "liveness/stack_offer.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>

#include "base/process_state.h"

namespace torch_ucc {
namespace {

constexpr std::string_view kKey = "stacks\t";
constexpr std::string_view kMemory = "/memfd:torch-ucc-stacks";
constexpr std::size_t kMost = 1 << 20U;  // bytes of a stack

std::string path_of(long pid, int descriptor) { return "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor); }

bool is_memory(const std::string& path) {
  std::array<char, 64> target{};
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  return length > 0 && std::string_view(target.data(), static_cast<std::size_t>(length)).starts_with(kMemory);
}

}  // namespace

std::optional<StackOffer> StackOffer::in(std::string_view journal) {
  std::optional<StackOffer> found;
  for (std::size_t end = 0; !journal.empty(); journal.remove_prefix(end)) {
    end = journal.find('\n');
    end = end == std::string_view::npos ? journal.size() : end + 1;
    if (journal.starts_with(kKey)) {
      const std::string value(journal.substr(kKey.size(), end - kKey.size()));
      StackOffer offer;
      const bool is_offer = std::sscanf(value.c_str(), "[%d, %d]", &offer.signal, &offer.descriptor) == 2;
      found = is_offer ? std::optional(offer) : std::nullopt;
    }
  }
  return found;
}

bool StackOffer::ask(long pid) const {
  const std::string path = path_of(pid, descriptor);
  return handles_signal(pid, signal) && is_memory(path) && ::truncate(path.c_str(), 0) == 0 &&
         ::kill(static_cast<pid_t>(pid), signal) == 0;
}

std::string StackOffer::read(long pid) const {
  const std::string path = path_of(pid, descriptor);
  const int file = is_memory(path) ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
  if (file < 0) {
    return "";
  }
  std::string text(kMost, '\0');
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  ::close(file);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

}  // namespace torch_ucc
