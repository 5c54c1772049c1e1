#include "base/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "base/random.h"

namespace torch_ucc {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// A process id is valid only within its pid namespace. Returns 0 if the kernel does not report it.
std::uint64_t pid_namespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? static_cast<std::uint64_t>(info.st_ino) : 0;
}

void* map(int file, std::size_t bytes, int protection) {
  void* const data =
      ::mmap(nullptr, bytes, protection, (file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED) | MAP_NORESERVE, file, 0);
  if (data == MAP_FAILED) {
    return nullptr;
  }
  ::madvise(data, bytes, MADV_DONTDUMP);  // a core dump would make the pages that were never touched
  return data;
}

std::uint64_t key_in(const void* data) {
  std::uint64_t key = 0;
  std::memcpy(&key, data, sizeof(key));
  return key;
}

}  // namespace

SharedMemory::SharedMemory(const char* name, std::size_t bytes)
    : SharedMemory(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING), bytes, nullptr) {
  // To make a file longer than this limit ends the process.
  rlimit longest{};
  const bool fits = ::getrlimit(RLIMIT_FSIZE, &longest) == 0 && longest.rlim_cur >= bytes;
  if (file_ >= 0 && (!fits || ::ftruncate(file_, static_cast<off_t>(bytes)) != 0 || ::fcntl(file_, F_ADD_SEALS, kSeals) != 0)) {
    ::close(std::exchange(file_, -1));
  }
  data_ = map(file_, bytes, PROT_READ | PROT_WRITE);
  if (data_ == nullptr) {
    throw std::bad_alloc();
  }
  const std::uint64_t key = random_number();
  std::memcpy(data_, &key, sizeof(key));
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) {
    ::munmap(data_, mapped_);
  }
  close_file();
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : SharedMemory(std::exchange(other.file_, -1), other.mapped_, std::exchange(other.data_, nullptr)) {}

std::string SharedMemory::address() const {
  if (file_ < 0) {
    return "";
  }
  return std::to_string(pid_namespace()) + ":" + std::to_string(::getpid()) + ":" + std::to_string(file_) + ":" +
         std::to_string(key_in(data_));
}

std::optional<SharedMemory> SharedMemory::of_peer(const std::string& address, std::size_t bytes, std::size_t mapped,
                                                  Access access) {
  unsigned long long space = 0;
  int pid = 0;
  int number = 0;
  unsigned long long key = 0;
  if (std::sscanf(address.c_str(), "%llu:%d:%d:%llu", &space, &pid, &number, &key) != 4 || space != pid_namespace()) {
    return std::nullopt;
  }
  const bool writes = access == Access::write;
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number);
  const int file = ::open(path.c_str(), (writes ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) {
    return std::nullopt;
  }
  struct stat info {};
  const int seals = ::fcntl(file, F_GET_SEALS);
  const bool fits = ::fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == static_cast<off_t>(bytes) &&
                    seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
  void* const data = fits ? map(file, mapped, writes ? PROT_READ | PROT_WRITE : PROT_READ) : nullptr;
  ::close(file);
  if (data == nullptr) {
    return std::nullopt;
  }
  SharedMemory memory(-1, mapped, data);
  if (key_in(data) != key) {
    return std::nullopt;
  }
  return memory;
}

void SharedMemory::trim(std::size_t bytes) {
  if (bytes < mapped_) {
    ::munmap(static_cast<char*>(data_) + bytes, mapped_ - bytes);
    mapped_ = bytes;
  }
}

void SharedMemory::close_file() {
  if (file_ >= 0) {
    ::close(std::exchange(file_, -1));
  }
}

void SharedMemory::discard(std::size_t offset, std::size_t bytes) const {
  ::madvise(static_cast<char*>(data_) + offset, bytes, MADV_REMOVE);
}

}  // namespace torch_ucc
