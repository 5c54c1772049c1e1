// The baton: who holds a LoopToken may touch the UCC and UCX handles of its engine, nobody else.
#pragma once

#include <cassert>
#include <thread>

namespace torch_ucc {

class Engine;

// Only an Engine makes one, for the thread that took its baton, and it lives as long as the baton
// is held. Every function that touches a UCC or UCX handle takes a LoopToken&: without the baton
// the call does not compile.
class LoopToken {
 public:
  LoopToken(const LoopToken&) = delete;
  LoopToken& operator=(const LoopToken&) = delete;

  // First line of every function that takes a token, in debug builds.
  void check() const {
#ifndef NDEBUG
    assert(thread_ == std::this_thread::get_id());
#endif
  }

 private:
  friend class Engine;
  LoopToken() = default;
#ifndef NDEBUG
  std::thread::id thread_ = std::this_thread::get_id();
#endif
};

}  // namespace torch_ucc
