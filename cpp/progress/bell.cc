#include "progress/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
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

  std::uint64_t key = 0;  // of SharedMemory
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

}  // namespace

Bell::Bell(SharedMemory memory) : memory_(std::move(memory)), page_(static_cast<Page*>(memory_.data())) {}

Bell::Bell() : Bell(SharedMemory("torch_ucc_bell", sizeof(Page))) {}

std::optional<Bell> Bell::of_peer(const std::string& address) {
  std::optional<SharedMemory> memory = SharedMemory::of_peer(address, sizeof(Page), sizeof(Page), SharedMemory::Access::write);
  if (!memory) {
    return std::nullopt;
  }
  return Bell(*std::move(memory));
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
