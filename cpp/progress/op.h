// One asynchronous operation, as the engine sees it.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

#include "base/deadline.h"
#include "base/lease.h"
#include "base/status.h"
#include "progress/completion.h"
#include "progress/failure_domain.h"
#include "progress/loop_token.h"
#include "trace/flight_recorder.h"

namespace torch_ucc {

// For so many bytes: at a gigabyte a second, which a slow network does not reach. Who waits longer
// sleeps between polls, in short pauses.
constexpr microseconds patience_for(std::size_t bytes) { return microseconds(bytes / 1000); }

// Order of calls: start() once, poll() until it says ended, finish() once if that was well; then
// the engine completes it.
//
// The transport never sees memory of the caller: an operation copies to and from buffers of its
// own, within a Use of its lease. When the engine gives an operation up (timeout, abort, failure of
// the transport, a peer that has ended), it first takes the caller's memory back, then tells the
// caller, and keeps the operation with its buffers until is_drained().
class Op {
 public:
  enum class State : unsigned char { in_flight, advanced, ended };

  Op() = default;
  virtual ~Op() = default;
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;

  // Posts the operation. An error ends it, and nothing of it is in flight.
  virtual Status start(LoopToken& token) = 0;

  // Non-blocking. `advanced`: in flight, and something happened since the last call. Once it
  // returned `ended`, transport_status() says how and the network is done with the buffers.
  virtual State poll(LoopToken& token) = 0;
  virtual Status transport_status() const = 0;

  // Not ok: it ended well, says the transport, but something went wrong meanwhile that may have
  // been its end.
  virtual Status doubt() const { return {}; }

  // Of a receive: the rank that sent what came. Once done.
  virtual int source() const { return -1; }

  // What is left to do on the data when the transport ended well. Runs without the baton, in the
  // thread that drove.
  virtual Status finish() { return {}; }

  // Wakes the peers on this host that sleep while they wait for this operation. Called once it was
  // started.
  virtual void announce() const {}
  // Whether every peer that this operation waits for wakes us in the same way: then we may sleep
  // longer.
  virtual bool is_announced() const { return false; }
  // How long the data itself may take once everybody is there.
  virtual microseconds patience() const { return microseconds(0); }

  // Whether start() alone takes so long that who does not wait had better leave it to the
  // background thread.
  virtual bool starts_slowly() const { return false; }

  // What it waits for in this process before it can begin, for the report of a timeout; empty:
  // nothing. Any thread.
  virtual std::string waits_for() const { return {}; }

  // What it still needs of a member of its group that has ended, also before it was started.
  enum class Need : unsigned char {
    none,
    direct,   // data that may be here already, in a message from that member
    relayed,  // data that may have left that member, and that other members may pass on
    missing,  // something that the member never sent: the operation cannot end well
  };
  virtual Need need_of(const Loss& /*loss*/) const { return Need::relayed; }

  // Ends the lease of the caller's memory. False if the result is stored already: another thread
  // completes the operation. The operation either is given up, or goes on without its caller, for
  // the sake of its peers.
  enum class After : unsigned char { given_up, goes_on };
  bool take_back(After after) {
    return lease_.revoke([this, after] {
      goes_on_.store(after == After::goes_on, std::memory_order_relaxed);
      on_taken_back(after);
    });
  }
  // Whether it has lost its caller and goes on. Once a Use of the lease has failed.
  bool goes_on_alone() const {
    lease_.wait_until_revoked();
    return goes_on_.load(std::memory_order_relaxed);
  }
  MemoryLease& lease() { return lease_; }

  // Before its caller changes what it reads: copies what is still to be sent. False if it cannot.
  // Any thread.
  virtual bool detach_inputs() { return false; }
  // Whether it could, without doing it.
  virtual bool can_detach_inputs() const { return false; }
  // After detach_inputs() returned true: whether the copies exist. An operation that has not begun
  // makes them later. Any thread.
  virtual bool has_detached_inputs() const { return true; }

  // Of an operation that was given up. cancel(): called once, with the baton; asks the transport to
  // let go of the buffers. is_drained(): called after that, with the baton, whether it has; then
  // the engine drops the operation.
  virtual void cancel(LoopToken& /*token*/) {}
  virtual bool is_drained(LoopToken& /*token*/) { return false; }
  // Drops what it holds of the caller, without the baton, since the last reference to a tensor may
  // need the GIL.
  virtual void let_go() {}

  // What it fails with: its group.
  virtual FailureDomain& domain() const = 0;

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

  Quiet& quiet() { return quiet_; }  // of what reaches this operation alone; of the engine, with the baton

 protected:
  // The last look at the caller's memory: copies what the transport may still read or, if the
  // operation goes on, what it has not sent yet. An operation with parts takes theirs back. If
  // there is no memory for a copy, the process ends: its peers would otherwise receive what the
  // caller writes there next.
  virtual void on_taken_back(After /*after*/) noexcept {}

 private:
  Completion completion_;
  MemoryLease lease_;
  std::atomic<bool> goes_on_{false};
  Quiet quiet_;
  Deadline deadline_;
  trace::Recording recording_;
  std::atomic<bool> posted_{false};
};

}  // namespace torch_ucc
