#include "base/scarcity.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <filesystem>
#include <iterator>
#include <system_error>

namespace torch_ucc {
namespace {

// Two only for a moment, two only with both kinds of shared memory
constexpr std::size_t kDescriptorsToStart = 12;
constexpr std::size_t kDescriptorsAContext = 32;  // with peers on other hosts
constexpr std::size_t kSharedMemoryAContext = 32 << 20;

// Returns 0 if the descriptors cannot be counted. Counting needs a descriptor: if none is left, all
// `limit` are in use.
std::size_t open_descriptors(std::size_t limit) {
  std::error_code error;
  const std::filesystem::directory_iterator all("/proc/self/fd", error);
  if (error) {
    return error == std::errc::too_many_files_open ? limit : 0;
  }
  return static_cast<std::size_t>(std::distance(begin(all), end(all))) - 1;
}

// Returns 0 if there is no limit.
std::size_t descriptor_limit() {
  rlimit files{};
  return ::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY ? files.rlim_cur : 0;
}

}  // namespace

std::string scarcity_of(std::size_t descriptors, std::size_t limit, std::size_t shared_memory_free, std::size_t size) {
  std::string text;
  if (limit != 0 && descriptors + kDescriptorsAContext > limit) {
    text += " This process has " + std::to_string(descriptors) + " of " + std::to_string(limit) +
            " file descriptors open, and a group may need " + std::to_string(kDescriptorsAContext) +
            ": raise the limit (ulimit -n).";
  }
  if (size != 0 && shared_memory_free < kSharedMemoryAContext) {
    text += " /dev/shm has " + std::to_string(shared_memory_free >> 20U) + " of " + std::to_string(size >> 20U) +
            " MiB free: enlarge it (in a container: --shm-size) or remove files that ended processes left there.";
  }
  return text;
}

bool has_descriptors_to_start() {
  const std::size_t limit = descriptor_limit();
  return limit == 0 || open_descriptors(limit) + kDescriptorsToStart <= limit;
}

std::string scarcity() {
  const std::size_t limit = descriptor_limit();
  struct statvfs shm {};
  const bool known = ::statvfs("/dev/shm", &shm) == 0;
  return scarcity_of(open_descriptors(limit), limit, known ? shm.f_bavail * shm.f_frsize : 0,
                     known ? shm.f_blocks * shm.f_frsize : 0);
}

}  // namespace torch_ucc
