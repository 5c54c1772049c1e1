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

// Returns how long `bytes` take at 1 GB/s. A thread that waits for them yields for that long before
// it begins to sleep between polls; on a slower network it then sleeps in short pauses.
constexpr microseconds patience_for(std::size_t bytes) { return microseconds(bytes / 1000); }

// A collective of up to so many bytes starts quickly: see Op::starts_slowly().
inline constexpr std::size_t kQuickToStart = std::size_t{256} << 10U;

// What Op::waits_for() returns until the earlier collectives of the group have ended.
inline constexpr const char* kEarlierOperations = "earlier operations of its group, and none of its data was sent";

// The engine calls start() once, then poll() until it returns `ended`, then finish() once if the
// operation ended well; then it completes the operation.
//
// The transport does not see host memory of the caller: an operation copies to and from buffers of
// its own, within a Use of its lease. When the engine gives an operation up (timeout, abort,
// failure of the transport, a peer that has ended), it first revokes the lease, then completes the
// operation with an error, and keeps the operation with its buffers until is_drained().
class Op {
 public:
  enum class State : unsigned char { in_flight, advanced, ended };

  Op() = default;
  virtual ~Op() = default;
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;

  // Starts the operation in the transport. If it returns an error, the operation has ended. With
  // any error but `transport`, it must have left nothing in the transport.
  virtual Status start(LoopToken& token) = 0;

  // Non-blocking. `advanced`: the operation is in flight and has advanced since the last call.
  // After `ended`, transport_status() returns how it ended; if that and doubt() are ok, the
  // transport is done with the buffers.
  virtual State poll(LoopToken& token) = 0;
  virtual Status transport_status() const = 0;

  // Called when transport_status() is ok. Returns an error if the transport reported a problem in
  // the meantime, so that the success is in doubt.
  virtual Status doubt() const { return {}; }

  // Of a receive that is done: the rank that sent the message. -1 for other operations.
  virtual int source() const { return -1; }

  // Stores the result in the caller's memory after the transport ended well. Runs without the
  // baton, within a Use of the lease, in the thread that drove. May throw.
  virtual Status finish() { return {}; }

  // Rings the bells of the peers on this host that wait for this operation. Called after start().
  virtual void announce() const {}
  // Whether every peer that this operation waits for rings our bell when it starts the operation.
  // Then pauses may be longer.
  virtual bool is_announced() const { return false; }
  // How long the transfer of the data may take once all ranks have started the operation.
  virtual microseconds patience() const { return microseconds(0); }

  // Whether start() takes long. Then post() leaves the operation in the intake, unless the caller
  // waits.
  virtual bool starts_slowly() const { return false; }

  // Returns what the operation waits for in this process before it can begin, as part of the
  // message of a timeout. Empty: nothing. Any thread.
  virtual std::string waits_for() const { return {}; }

  // What the operation still needs from a member of its group that has ended. May be called before
  // start().
  enum class Need : unsigned char {
    none,
    direct,   // data that the member may have sent to this rank
    relayed,  // data that the member may have sent to other members, which may pass it on
    missing,  // something that the member never sent, so the operation cannot end well
  };
  virtual Need need_of(const Loss& /*loss*/) const { return Need::relayed; }

  // Revokes the lease of the caller's memory; may wait for one copy. Returns false if the result is
  // stored already: then another thread completes the operation. `after`: the operation is given
  // up, or goes on without its caller because its peers need it. Any thread.
  enum class After : unsigned char { given_up, goes_on };
  bool take_back(After after) {
    return lease_.revoke([this, after] {
      goes_on_.store(after == After::goes_on, std::memory_order_relaxed);
      on_taken_back(after);
    });
  }
  // Whether the operation goes on without its caller. For a thread that got no Use of the lease.
  bool goes_on_alone() const {
    lease_.wait_until_revoked();
    return goes_on_.load(std::memory_order_relaxed);
  }
  MemoryLease& lease() { return lease_; }

  // Makes the operation send its remaining data from a copy, so that the caller may change its
  // memory. Returns false if the operation cannot do so. Any thread.
  virtual bool detach_inputs() { return false; }
  // Whether detach_inputs() is possible.
  virtual bool can_detach_inputs() const { return false; }
  // After detach_inputs() has returned true: whether the copies exist. An operation that has not
  // begun makes them later. Any thread.
  virtual bool has_detached_inputs() const { return true; }

  // For an operation that was given up. The engine calls cancel() once, to ask the transport to
  // release the buffers, and then is_drained() until it returns true: the transport has released
  // them. Then the engine drops the operation. After a success in doubt it calls only is_drained().
  virtual void cancel(LoopToken& /*token*/) {}
  virtual bool is_drained(LoopToken& /*token*/) { return false; }
  // Drops the references to the caller's tensors. Called without the baton after an error, because
  // the release of a tensor may need the GIL.
  virtual void let_go() {}

  // The failure domain of the operation, which is its group.
  virtual FailureDomain& domain() const = 0;

  // Describes the operation for error messages: name, sequence number, group, sizes. Any thread, at
  // any time.
  virtual std::string describe() const = 0;

  Completion& completion() { return completion_; }
  const Completion& completion() const { return completion_; }

  // Whether the operation was posted. A wait for an operation that is never posted does not end.
  bool posted() const { return posted_.load(std::memory_order_acquire); }
  void mark_posted() { posted_.store(true, std::memory_order_release); }  // by the engine

  // The call record of the operation. Refers to no record unless it is set before the post.
  const trace::Recording& recording() const { return recording_; }
  void set_recording(trace::Recording recording) { recording_ = recording; }
  // Records that a caller waits since `since`, also for the parts of the operation.
  virtual void record_wait(Clock::time_point since) const { recording_.awaited(since); }
  // Records the end of the operation, and of those of its parts that have not ended yet.
  virtual void record_end(StatusCode result) const { recording_.ended(result); }

  Deadline deadline() const { return deadline_; }
  void set_deadline(Deadline deadline) { deadline_ = deadline; }  // before it is posted

  // About data for this operation alone; the engine uses it with the baton
  Quiet& quiet() { return quiet_; }

 protected:
  // Called by take_back() before the memory belongs to the caller again. Copies the data that the
  // transport may still read or, if the operation goes on, the data that is not sent yet. An
  // operation with parts takes back the memory of its parts. If there is no memory for a copy, the
  // process ends: otherwise the peers would receive what the caller writes next.
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
