// Something that has to be called for its operations to advance.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "progress/loop_token.h"

namespace torch_ucc {

class Pollable {
 public:
  virtual ~Pollable() = default;

  // Non-blocking. An error means that operations of this pollable failed, without a word about
  // which: the engine then fails all that are in flight.
  virtual Status progress(LoopToken& token) = 0;
};

// One that knows whether anything of it is under way.
class CountingPollable : public Pollable {
 public:
  // Requests that were posted and have not ended: whoever posts one counts it.
  void count_posted(LoopToken& token) {
    token.check();
    ++outstanding_;
  }
  void count_ended() { --outstanding_; }  // from callbacks, too, which run inside progress()
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
