#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace fake {
namespace {

constexpr unsigned char kFreed = 0xFB;
constexpr std::size_t kSpace = std::size_t{32} << 30;

std::size_t rounded(std::size_t bytes) { return (std::max<std::size_t>(bytes, 1) + 511) / 512 * 512; }

bool is_untouched(const unsigned char* bytes, std::size_t size) {
  return std::all_of(bytes, bytes + size, [](unsigned char byte) { return byte == kFreed; });
}

// One file mapped twice: at addresses that are handed out, and where it can be reached.
class Space {
 public:
  explicit Space(bool hidden) {
    const int file = ::memfd_create("fake-accelerator", 0);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(kSpace)) != 0) {
      throw std::runtime_error("no memory for the fake accelerator");
    }
    real_ = map(file, PROT_READ | PROT_WRITE);
    shown_ = hidden ? map(file, PROT_NONE) : real_;
    ::close(file);
  }

  void show() { ::mprotect(shown_, kSpace, PROT_READ | PROT_WRITE); }
  unsigned char* real(const void* shown) const { return real_ + (static_cast<const unsigned char*>(shown) - shown_); }
  bool holds(const void* shown) const { return shown >= shown_ && shown < shown_ + kSpace; }

  void* take(std::size_t bytes) {
    const std::size_t size = rounded(bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& free = free_[size];
    unsigned char* address = nullptr;
    if (!free.empty()) {
      address = free.back();
      free.pop_back();
      faults_ += is_untouched(real(address), size) ? 0 : 1;
    } else if (next_ + size > kSpace) {
      throw std::runtime_error("the fake accelerator is out of memory");
    } else {
      address = shown_ + next_;
      next_ += size;
      std::memset(real(address), kFreed, size);
    }
    sizes_[address] = size;
    return address;
  }

  void give(void* address) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = sizes_.find(address);
    std::memset(real(address), kFreed, found->second);
    free_[found->second].push_back(static_cast<unsigned char*>(address));
    sizes_.erase(found);
  }

  int faults() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [size, addresses] : free_) {
      for (unsigned char* address : addresses) {
        if (!is_untouched(real(address), size)) {
          ++faults_;
          std::memset(real(address), kFreed, size);  // each counts once
        }
      }
    }
    return faults_;
  }

 private:
  static unsigned char* map(int file, int protection) {
    void* const address = ::mmap(nullptr, kSpace, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (address == MAP_FAILED) {
      throw std::runtime_error("no address space for the fake accelerator");
    }
    return static_cast<unsigned char*>(address);
  }

  unsigned char* real_ = nullptr;
  unsigned char* shown_ = nullptr;
  std::mutex mutex_;
  std::size_t next_ = 0;
  std::map<void*, std::size_t> sizes_;
  std::map<std::size_t, std::vector<unsigned char*>> free_;
  int faults_ = 0;
};

Space& device_space() {
  static auto* const space = new Space(true);
  return *space;
}

Space& pinned_space() {
  static auto* const space = new Space(false);
  return *space;
}

// Whose queue a block belongs to, and in which others it is used.
struct Users {
  Stream* owner;
  std::vector<Stream*> others;
};
std::mutex users_mutex;
std::map<void*, Users>& users() {
  static auto* const all = new std::map<void*, Users>();
  return *all;
}
// What was freed since its stream was last allocated for.
std::map<Stream*, std::vector<void*>>& dropped() {
  static auto* const all = new std::map<Stream*, std::vector<void*>>();
  return *all;
}

}  // namespace

void* device_allocate(std::size_t bytes, Stream& stream) {
  std::vector<void*> free;
  {
    const std::lock_guard<std::mutex> lock(users_mutex);
    free = std::exchange(dropped()[&stream], {});
  }
  for (void* each : free) {
    stream.push([each] { device_space().give(each); });
  }
  void* const address = device_space().take(bytes);
  const std::lock_guard<std::mutex> lock(users_mutex);
  users()[address] = {&stream, {}};
  return address;
}

namespace {

// As soon as the others have come this far. Nothing else that the owner has freed waits for that.
void drop(void* address, Stream* owner, std::vector<Stream*> others) {
  if (!others.empty()) {
    Stream* const next = others.back();
    others.pop_back();
    next->push([address, owner, others] { drop(address, owner, others); });
    return;
  }
  const std::lock_guard<std::mutex> lock(users_mutex);
  dropped()[owner].push_back(address);
}

}  // namespace

void device_free(void* address) {
  Users used;
  {
    const std::lock_guard<std::mutex> lock(users_mutex);
    const auto found = users().find(address);
    used = std::move(found->second);
    users().erase(found);
  }
  drop(address, used.owner, std::move(used.others));
}

void device_record(void* address, Stream& stream) {
  const std::lock_guard<std::mutex> lock(users_mutex);
  Users& used = users().at(address);
  if (used.owner != &stream) {
    used.others.push_back(&stream);
  }
}

void* reach(const void* address) { return device_space().real(address); }

void show_to_host() { device_space().show(); }
bool is_of_device(const void* address) { return device_space().holds(address); }

void* pinned_allocate(std::size_t bytes) { return pinned_space().take(bytes); }
void pinned_free(void* address) { pinned_space().give(address); }
bool is_pinned(const void* address) { return pinned_space().holds(address); }

int faults() {
  {
    const std::lock_guard<std::mutex> lock(users_mutex);
    for (auto& [stream, addresses] : dropped()) {
      for (void* each : std::exchange(addresses, {})) {
        device_space().give(each);
      }
    }
  }
  return device_space().faults() + pinned_space().faults();
}

}  // namespace fake
