// A mutex, and macros that say which data it guards. clang checks at compile time that the code
// keeps to them (-Wthread-safety). Under other compilers the macros expand to nothing.
#pragma once

#include <mutex>

#if defined(__clang__)
#define TUCC_ANNOTATE(x) __attribute__((x))
#else
#define TUCC_ANNOTATE(x)
#endif

#define TUCC_CAPABILITY(x) TUCC_ANNOTATE(capability(x))
#define TUCC_SCOPED_CAPABILITY TUCC_ANNOTATE(scoped_lockable)
#define TUCC_GUARDED_BY(x) TUCC_ANNOTATE(guarded_by(x))
#define TUCC_REQUIRES(...) TUCC_ANNOTATE(requires_capability(__VA_ARGS__))
#define TUCC_EXCLUDES(...) TUCC_ANNOTATE(locks_excluded(__VA_ARGS__))
#define TUCC_ACQUIRE(...) TUCC_ANNOTATE(acquire_capability(__VA_ARGS__))
#define TUCC_RELEASE(...) TUCC_ANNOTATE(release_capability(__VA_ARGS__))
#define TUCC_TRY_ACQUIRE(...) TUCC_ANNOTATE(try_acquire_capability(__VA_ARGS__))
#define TUCC_ASSERT_CAPABILITY(x) TUCC_ANNOTATE(assert_capability(x))
#define TUCC_NO_THREAD_SAFETY_ANALYSIS TUCC_ANNOTATE(no_thread_safety_analysis)

namespace torch_ucc {

class TUCC_CAPABILITY("mutex") Mutex {
 public:
  void lock() TUCC_ACQUIRE() { mutex_.lock(); }
  void unlock() TUCC_RELEASE() { mutex_.unlock(); }
  bool try_lock() TUCC_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

  // Makes the analysis treat this mutex as locked. For code that has another proof that the mutex
  // is locked, such as a LoopToken&.
  void assert_held() const TUCC_ASSERT_CAPABILITY(this) {}

 private:
  std::mutex mutex_;
};

// Holds a Mutex until the end of a block.
class TUCC_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TUCC_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() TUCC_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace torch_ucc
