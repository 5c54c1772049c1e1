// One asynchronous operation, as the engine sees it.
#pragma once

#include <atomic>
#include <string>

#include "base/deadline.h"
#include "base/status.h"
#include "progress/completion.h"
#include "progress/loop_token.h"
#include "progress/scope.h"
#include "trace/flight_recorder.h"

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

  // Not ok: it ended well, says the transport, but something went wrong meanwhile that may have been its end.
  virtual Status doubt() const { return {}; }

  // Of a receive: the rank that sent what came. Once done.
  virtual int source() const { return -1; }

  // What is left to do on the data when the transport ended well. Runs without the baton, in the thread that drove.
  virtual Status finish() { return {}; }

  // Wakes the peers on this host that sleep while they wait for this operation. Called once it was started.
  virtual void announce() const {}
  // Whether every peer that this operation waits for wakes us in the same way: then we may sleep longer.
  virtual bool is_announced() const { return false; }
  // How long the data itself may take once everybody is there.
  virtual microseconds patience() const { return microseconds(0); }

  // Whether start() alone takes so long that who does not wait had better leave it to the background thread.
  virtual bool starts_slowly() const { return false; }

  // What it waits for in this process before it can begin, for the report of a timeout; empty: nothing. Any thread.
  virtual std::string waits_for() const { return {}; }

  // What it fails with: its group.
  virtual Scope& scope() const = 0;

  // For errors: op, sequence number, group, sizes. Any thread, any time.
  virtual std::string describe() const = 0;

  Completion& completion() { return completion_; }
  const Completion& completion() const { return completion_; }

  // Whether the engine has it: who waits for one that nobody posted would wait for ever.
  bool posted() const { return posted_.load(std::memory_order_acquire); }
  void mark_posted() { posted_.store(true, std::memory_order_release); }  // by the engine

  // Where it is recorded: of none unless set, before it is posted.
  const trace::Recording& recording() const { return recording_; }
  void set_recording(trace::Recording recording) { recording_ = recording; }
  // Writes there, and of its parts, that somebody waits.
  virtual void record_wait(Clock::time_point since) const { recording_.awaited(since); }
  // Writes its end there, and that of its parts which have not ended yet.
  virtual void record_end(StatusCode result) const { recording_.ended(result); }

  Deadline deadline() const { return deadline_; }
  void set_deadline(Deadline deadline) { deadline_ = deadline; }  // before it is posted

 private:
  Completion completion_;
  Deadline deadline_;
  trace::Recording recording_;
  std::atomic<bool> posted_{false};
};

}  // namespace torch_ucc
