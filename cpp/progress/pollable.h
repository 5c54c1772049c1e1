// A library that the engine must poll so that its operations advance.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "progress/loop_token.h"

namespace torch_ucc {

class Pollable {
 public:
  virtual ~Pollable() = default;

  // Non-blocking. Returns an error if operations of this pollable failed and it is not known which.
  // The engine then fails all operations, unless the end of a rank explains the error (see
  // Suspects).
  virtual Status progress(LoopToken& token) = 0;
};

// A Pollable that counts its requests.
class CountingPollable : public Pollable {
 public:
  // The code that posts a request calls count_posted(), and count_ended() when the request has
  // ended.
  void count_posted(LoopToken& token) {
    token.check();
    ++outstanding_;
  }
  void count_ended() { --outstanding_; }  // also from callbacks, which run inside progress()
  std::size_t outstanding(LoopToken& token) const {
    token.check();
    return outstanding_;
  }

 protected:
  bool has_outstanding() const { return outstanding_ != 0; }

 private:
  std::size_t outstanding_ = 0;
};

}  // namespace torch_ucc
