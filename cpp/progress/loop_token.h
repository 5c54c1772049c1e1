// Proof that a thread holds the baton. Only that thread may use the UCC and UCX handles of the
// engine.
#pragma once

#include <cassert>
#include <thread>

namespace torch_ucc {

class Engine;

// Only the Engine makes a LoopToken, for the thread that took the baton and for as long as the
// thread holds it. Every function that uses a UCC or UCX handle takes a LoopToken&, so a call
// without the baton does not compile.
class LoopToken {
 public:
  LoopToken(const LoopToken&) = delete;
  LoopToken& operator=(const LoopToken&) = delete;

  // Checks, in debug builds, that the calling thread holds the baton.
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
