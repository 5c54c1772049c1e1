// One asynchronous operation, as the engine sees it.
#pragma once

#include <string>

#include "base/deadline.h"
#include "base/status.h"
#include "progress/completion.h"
#include "progress/loop_token.h"

namespace torch_ucc {

// Order of calls: start() once, poll() until it says ended, finish() once if that was well; then the engine completes it.
// An operation that the engine gives up (timeout, abort, failure of the transport) sees no further call and is kept for the
// life of the process: the network may still write to its buffers.
class Op {
 public:
  enum class State : unsigned char { in_flight, advanced, ended };

  Op() = default;
  virtual ~Op() = default;
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;

  // Posts the operation. An error ends it, and nothing of it is in flight.
  virtual Status start(LoopToken& token) = 0;

  // Non-blocking. `advanced`: in flight, and something happened since the last call. Once it returned `ended`, transport_status()
  // says how and the network is done with the buffers.
  virtual State poll(LoopToken& token) = 0;
  virtual Status transport_status() const = 0;

  // What is left to do on the data when the transport ended well. Runs without the baton, in the thread that drove.
  virtual Status finish() { return {}; }

  // Wakes the peers on this host that sleep while they wait for this operation. Called once it was started.
  virtual void announce() const {}
  // Whether every peer that this operation waits for wakes us in the same way: then we may sleep longer.
  virtual bool is_announced() const { return false; }
  // How long the data itself may take once everybody is there.
  virtual microseconds patience() const { return microseconds(0); }

  // What the operation belongs to (its group): compared, never followed.
  virtual const void* scope() const = 0;

  // For errors: op, sequence number, group, sizes. Any thread, any time.
  virtual std::string describe() const = 0;

  Completion& completion() { return completion_; }
  const Completion& completion() const { return completion_; }

  Deadline deadline() const { return deadline_; }
  void set_deadline(Deadline deadline) { deadline_ = deadline; }  // before it is posted

 private:
  Completion completion_;
  Deadline deadline_;
};

}  // namespace torch_ucc
