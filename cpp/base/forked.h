// Whether this process is a copy of one that used UCX and UCC, whose threads and connections do not
// survive a fork.
#pragma once

#include <pthread.h>

#include <atomic>

namespace torch_ucc {

namespace detail {
inline std::atomic<bool> is_forked_child{false};
}

// Children that are forked from now on are marked. Idempotent.
inline void mark_forked_children() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { detail::is_forked_child.store(true); });
  (void)registered;
}

// Such a child must not touch what it shares with its parent, not even to clean up: sockets,
// descriptors, shared memory.
inline bool in_forked_child() { return detail::is_forked_child.load(std::memory_order_relaxed); }

}  // namespace torch_ucc
