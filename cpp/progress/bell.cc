#include "progress/bell.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <ctime>
#include <new>
#include <random>
#include <utility>

namespace torch_ucc {

// Shared between processes of one build on one host. The owner writes `last` at each of its calls;
// its peers read the other words at each of their calls. They lie in different cache lines, so that
// neither side waits for the cache of the other.
struct Bell::Page {
  static constexpr std::size_t kApart = 128;  // two cache lines, which processors fetch together
  struct alignas(kApart) LastCall {
    std::atomic<std::uint64_t> activity{0};  // group 16 | operation 16 | seq 32
    std::atomic<Clock::rep> since{0};
  };

  // Random: a page found under a recycled process id is not taken for this one
  std::uint64_t key = 0;
  std::atomic<std::uint32_t> rings{0};
  std::atomic<std::uint32_t> sleepers{0};
  std::atomic<Presence> presence{Presence::here};
  LastCall last;
};

namespace {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

long futex(const std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

std::uint64_t random_key() {
  std::random_device random;
  return (static_cast<std::uint64_t>(random()) << 32U) | random();
}

void* map(int file, std::size_t size) {
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

// A process id is valid only within its pid namespace. Returns 0 if the kernel does not report it.
std::uint64_t pid_namespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? static_cast<std::uint64_t>(info.st_ino) : 0;
}

}  // namespace

Bell::Bell(Page* page, int file) : page_(page), file_(file) {}

Bell::Bell() : page_(nullptr), file_(::memfd_create("torch_ucc_bell", MFD_CLOEXEC)) {
  if (file_ >= 0 && ::ftruncate(file_, sizeof(Page)) != 0) {
    ::close(std::exchange(file_, -1));
  }
  void* memory = map(file_, sizeof(Page));
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  page_ = new (memory) Page();
  page_->key = random_key();
}

Bell::Bell(Bell&& other) noexcept : page_(std::exchange(other.page_, nullptr)), file_(std::exchange(other.file_, -1)) {}

Bell::~Bell() {
  if (page_ != nullptr) {
    ::munmap(page_, sizeof(Page));
  }
  if (file_ >= 0) {
    ::close(file_);
  }
}

std::string Bell::address() const {
  if (file_ < 0) {
    return "";
  }
  return std::to_string(pid_namespace()) + ":" + std::to_string(::getpid()) + ":" + std::to_string(file_) + ":" +
         std::to_string(page_->key);
}

std::optional<Bell> Bell::of_peer(const std::string& address) {
  unsigned long long space = 0;
  int pid = 0;
  int number = 0;
  unsigned long long key = 0;
  if (std::sscanf(address.c_str(), "%llu:%d:%d:%llu", &space, &pid, &number, &key) != 4 || space != pid_namespace()) {
    return std::nullopt;
  }
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(number);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) {
    return std::nullopt;
  }
  struct stat info {};
  const bool fits = ::fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == static_cast<off_t>(sizeof(Page));
  void* const memory = fits ? map(file, sizeof(Page)) : nullptr;
  ::close(file);
  if (memory == nullptr) {
    return std::nullopt;
  }
  Bell bell(static_cast<Page*>(memory), -1);
  if (bell.page_->key != key) {
    return std::nullopt;
  }
  return bell;
}

// A sleeper announces itself and then polls the network. A process that rings has written to the
// network and then looks for sleepers. The fences keep both orders, so at least one sees the other.
void Bell::ring() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  wake_sleepers();
}

void Bell::ring(const std::vector<const Bell*>& bells) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const Bell* bell : bells) {
    bell->wake_sleepers();
  }
}

void Bell::wake_sleepers() const {
  if (page_->sleepers.load(std::memory_order_relaxed) != 0) {
    page_->rings.fetch_add(1, std::memory_order_seq_cst);
    futex(page_->rings, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

void Bell::set_presence(Presence presence) const { page_->presence.store(presence, std::memory_order_release); }
Bell::Presence Bell::presence() const { return page_->presence.load(std::memory_order_acquire); }

void Bell::set_activity(const Activity& activity) const {
  page_->last.since.store(activity.since.time_since_epoch().count(), std::memory_order_relaxed);
  page_->last.activity.store(
      static_cast<std::uint64_t>(activity.group) << 48U | static_cast<std::uint64_t>(activity.operation) << 32U | activity.seq,
      std::memory_order_release);
}

Bell::Activity Bell::activity() const {
  const std::uint64_t packed = page_->last.activity.load(std::memory_order_acquire);
  Activity activity;
  activity.group = static_cast<std::uint16_t>(packed >> 48U);
  activity.operation = static_cast<std::uint16_t>(packed >> 32U);
  activity.seq = static_cast<std::uint32_t>(packed);
  activity.since = Clock::time_point(Clock::duration(page_->last.since.load(std::memory_order_relaxed)));
  return activity;
}

Bell::Sleep::Sleep(const Bell& bell) : bell_(bell), heard_(bell.page_->rings.load(std::memory_order_seq_cst)) {
  bell_.page_->sleepers.fetch_add(1, std::memory_order_seq_cst);
}

Bell::Sleep::~Sleep() { bell_.page_->sleepers.fetch_sub(1, std::memory_order_seq_cst); }

bool Bell::Sleep::wait(Clock::duration duration) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
  const timespec timeout{static_cast<std::time_t>(ns / 1000000000), static_cast<long>(ns % 1000000000)};
  if (ns > 0) {
    futex(bell_.page_->rings, FUTEX_WAIT, heard_, &timeout);
  }
  return bell_.page_->rings.load(std::memory_order_acquire) != heard_;
}

}  // namespace torch_ucc
