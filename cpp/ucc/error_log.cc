#include "ucc/error_log.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>

#include "base/thread_annotations.h"

namespace torch_ucc {
namespace {

// UCC's log is a copy of UCX's and has the same types.
enum Answer : int { kStop, kContinue };
constexpr int kError = 1;  // fatal is 0
using Handler = Answer (*)(const char* file, unsigned line, const char* function, int level, const void* component,
                           const char* message, va_list arguments);
using PushHandler = void (*)(Handler);

std::atomic<std::uint64_t> errors{0};
thread_local int depth = 0;

// The latest texts: the text of error i is at index i modulo the size.
struct Texts {
  Mutex mutex;  // several engines may drive at once
  std::array<std::string, 32> latest TUCC_GUARDED_BY(mutex);
};
Texts& texts() {
  static auto* instance = new Texts();  // may be written to while the process ends
  return *instance;
}

// Called by UCC, from C.
Answer hear(const char* /*file*/, unsigned /*line*/, const char* /*function*/, int level, const void* /*component*/,
            const char* message, va_list arguments) {
  if (level > kError || depth == 0) {
    return kContinue;
  }
  std::array<char, 512> text{};
  va_list copy;
  va_copy(copy, arguments);
  std::vsnprintf(text.data(), text.size(), message, copy);
  va_end(copy);
  ErrorLog::add(text.data());
  return level == kError ? kStop : kContinue;
}

}  // namespace

void ErrorLog::listen() {
  static const bool listening = [] {
    const auto push = reinterpret_cast<PushHandler>(::dlsym(RTLD_DEFAULT, "ucc_log_push_handler"));
    if (push != nullptr) {
      push(hear);
    }
    return push != nullptr;
  }();
  (void)listening;
}

std::uint64_t ErrorLog::count() { return errors.load(std::memory_order_acquire); }

std::string ErrorLog::first_since(std::uint64_t before) {
  const MutexLock lock(texts().mutex);
  const std::uint64_t now = count();
  const std::size_t kept = texts().latest.size();
  const std::uint64_t first = now - before > kept ? now - kept : before;
  return first < now ? texts().latest[first % kept] : "";
}

void ErrorLog::add(const std::string& text) {
  const MutexLock lock(texts().mutex);
  texts().latest[count() % texts().latest.size()] = text;
  errors.fetch_add(1, std::memory_order_release);
}

ErrorLog::Capture::Capture() { ++depth; }
ErrorLog::Capture::~Capture() { --depth; }

}  // namespace torch_ucc
