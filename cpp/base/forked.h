// Whether this process was forked from a process that used UCX and UCC. Their threads and
// connections do not survive a fork.
#pragma once

#include <pthread.h>

#include <atomic>

namespace torch_ucc {

namespace detail {
inline std::atomic<bool> is_forked_child{false};
}

// Marks every child that this process forks from now on. Idempotent.
inline void mark_forked_children() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { detail::is_forked_child.store(true); });
  (void)registered;
}

// Whether this process is a marked child. Such a child must not touch the sockets, descriptors and
// shared memory that it shares with its parent, not even to clean up.
inline bool in_forked_child() { return detail::is_forked_child.load(std::memory_order_relaxed); }

}  // namespace torch_ucc
