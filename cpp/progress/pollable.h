// Something that has to be called for its operations to advance.
#pragma once

#include "base/status.h"
#include "progress/loop_token.h"

namespace torch_ucc {

class Pollable {
 public:
  virtual ~Pollable() = default;

  // Non-blocking. An error means that operations of this pollable failed, without a word about which: the engine then fails
  // all that are in flight.
  virtual Status progress(LoopToken& token) = 0;
};

}  // namespace torch_ucc
