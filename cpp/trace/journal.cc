#include "trace/journal.h"

#include <sched.h>

#include <cstring>

namespace torch_ucc::trace {
namespace {

constexpr std::size_t kSlack = 64 << 10U;  // bytes of lines that no longer count, in any case

std::string line_of(const std::string& key, const std::string& json) { return key + '\t' + json + '\n'; }

// Bytes are stored with release and loaded with acquire instead of fences, which the thread
// sanitizer does not support. A reader that sees a byte of a text that is written anew then sees
// the odd version, too.
std::string copy_of(const char* text, std::size_t size) {
  std::string copy(size, '\0');
  for (std::size_t i = 0; i < size; ++i) {
    copy[i] = __atomic_load_n(text + i, __ATOMIC_ACQUIRE);
  }
  return copy;
}

void store(char* to, const std::string& text) {
  for (const char c : text) {
    __atomic_store_n(to++, c, __ATOMIC_RELEASE);
  }
}

}  // namespace

void Journal::set(const std::string& key, const std::string& json) {
  const MutexLock lock(mutex_);
  std::string& fact = facts_[key];
  needed_ += line_of(key, json).size() - (fact.empty() ? 0 : line_of(key, fact).size());
  fact = json;
  append(line_of(key, json));
}

void Journal::remove(const std::string& key) {
  const MutexLock lock(mutex_);
  const auto it = facts_.find(key);
  if (it != facts_.end()) {
    needed_ -= line_of(key, it->second).size();
    facts_.erase(it);
    append(line_of(key, ""));
  }
}

void Journal::append(const std::string& line) {
  const std::size_t size = head_->size.load(std::memory_order_relaxed);
  if (size + line.size() > room_ || size > 2 * needed_ + kSlack) {
    write_anew();
    return;
  }
  store(text() + size, line);
  head_->size.store(size + line.size(), std::memory_order_release);
}

void Journal::write_anew() {
  const std::uint64_t version = head_->version.load(std::memory_order_relaxed);
  head_->version.store(version + 1, std::memory_order_relaxed);
  std::size_t size = 0;
  for (const auto& [key, json] : facts_) {
    const std::string line = line_of(key, json);
    if (size + line.size() <= room_) {
      store(text() + size, line);
      size += line.size();
    }
  }
  head_->size.store(size, std::memory_order_release);
  head_->version.store(version + 2, std::memory_order_release);
}

std::string Journal::read(const void* memory, std::size_t bytes) {
  const auto* const head = static_cast<const Head*>(memory);
  const auto* const text = reinterpret_cast<const char*>(head + 1);
  constexpr int kTries = 1000;
  for (int i = 0; i < kTries; ++i) {
    const std::uint64_t before = head->version.load(std::memory_order_acquire);
    const std::uint64_t size = head->size.load(std::memory_order_acquire);
    if (before % 2 == 0 && size <= bytes - sizeof(Head)) {
      std::string copy = copy_of(text, size);
      if (head->version.load(std::memory_order_relaxed) == before) {
        return copy;
      }
    }
    ::sched_yield();
  }
  return "";
}

}  // namespace torch_ucc::trace
