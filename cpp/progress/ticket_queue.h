// Makes operations begin in the order in which they took tickets.
#pragma once

#include <cstdint>

#include "progress/loop_token.h"

namespace torch_ucc {

// Each operation calls take(), begins when serves() returns true for its ticket, and then calls
// pass() so that the next one can begin. All members need the baton.
class TicketQueue {
 public:
  std::uint64_t take(LoopToken& token) {
    token.check();
    return next_++;
  }
  bool serves(LoopToken& token, std::uint64_t ticket) const {
    token.check();
    return serving_ == ticket;
  }
  void pass(LoopToken& token) {
    token.check();
    ++serving_;
  }

 private:
  std::uint64_t next_ = 0;
  std::uint64_t serving_ = 0;
};

}  // namespace torch_ucc
