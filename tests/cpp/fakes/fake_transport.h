// A transport that sends nothing, counts how often it is polled and breaks when told.
#pragma once

#include <atomic>

#include "progress/pollable.h"

namespace torch_ucc {

class FakeTransport final : public Pollable {
 public:
  Status progress(LoopToken& token) override {
    token.check();
    polls_.fetch_add(1, std::memory_order_relaxed);
    return broken_.load() ? Status(StatusCode::transport, "the wire is cut") : Status();
  }

  // Any thread.
  void cut_wire() { broken_.store(true); }
  long polls() const { return polls_.load(std::memory_order_relaxed); }

 private:
  std::atomic<long> polls_{0};
  std::atomic<bool> broken_{false};
};

}  // namespace torch_ucc
