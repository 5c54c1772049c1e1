// The one place where operations advance. Owns the baton, the intake, the operations in flight and
// the background thread.
//
// Who drives: a caller who posts or waits takes the baton if it is free and drives itself, so that
// a small operation ends without a thread hop; what starts slowly and is not waited for he leaves
// in the intake. The background thread drives only while something was posted, no thread waits and
// the baton is free. Nobody sleeps with the baton in hand, and nobody waits for it: who does not
// get it leaves the operation in the intake, or sleeps on the bell and tries again. Completions and
// finish() run after the baton was given back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/interrupt.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "progress/bell.h"
#include "progress/failure_domain.h"
#include "progress/intake.h"
#include "progress/loop_token.h"
#include "progress/loss.h"
#include "progress/op.h"
#include "progress/parker.h"
#include "progress/pollable.h"
#include "progress/suspects.h"
#include "progress/wake_up.h"

namespace torch_ucc {

// What the caller of post() does next.
enum class Follow : unsigned char {
  waits,   // calls wait() at once: the background thread need not be woken
  leaves,  // goes on with something else
};

class Engine {
 public:
  // The engine does not own `transport`, which must outlive it; it touches it only with the baton.
  // `bell` is what wakes threads that sleep in it.
  Engine(Pollable& transport, ParkPolicy policy, Bell bell = Bell(), LossPolicy losses = {});
  // Joins the background thread; does not wait for operations: those still in flight are kept for
  // ever.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Takes the operation over. Never blocks. Operations of one thread start in the order it posted
  // them. On an engine or in a domain that has failed the operation ends at once with the first
  // error.
  void post(std::shared_ptr<Op> op, Follow follow);

  // Makes progress until `op` is done or the deadline passed; true if done. The deadline of the
  // wait is not that of the operation: an operation that is not done may be waited for again.
  // `interrupt` may be null; else it is called now and then, and what it throws leaves the wait.
  bool wait(Op& op, Deadline deadline, InterruptCheck interrupt = nullptr);

  // post() and wait(), for a caller that does nothing between the two: it drives from the post on.
  // Were the background thread to drive for a moment, it would find work at many a look and stay
  // awake beside a caller that never leaves it any.
  bool post_and_wait(const std::shared_ptr<Op>& op, Deadline deadline, InterruptCheck interrupt = nullptr);

  // Non-blocking: true if `op` is done, which it is as soon as the engine or its domain has failed.
  bool settled(Op& op);

  // For a caller who wants to see the end of `op` without wait(): the background thread drives from
  // now on, without the moment that it else leaves to a caller who may come back. Unless it drives
  // already, that is left for what starts slowly: woken at once it may take the core from a caller
  // who is about to go on.
  void drive_in_background(const Op& op);

  // Post and wait, for operations of our own (creating a team, the barrier before closing).
  Status run(const std::shared_ptr<Op>& op);

  // Fails everything in flight and everything posted from now on with `reason`, unless an earlier
  // reason stands. Returns at once. Any thread.
  void fail(Status reason);

  // The same for the operations of one domain: the others go on.
  void fail(FailureDomain& domain, Status reason);

  // A member of the domain is lost. The domain fails as soon as one of its operations needs
  // something that the member never sent, or may need it and nothing arrives any more; until then
  // operations may still end well. Returns at once. Any thread.
  void lose(FailureDomain& domain, Loss loss);

  // Makes progress until no operation of `domain` is in flight; false if the deadline passed first,
  // or the domain or the engine failed.
  bool drain(const FailureDomain& domain, Deadline deadline);

  // Whether requests may be left in the transport that never end: it must not be closed then.
  bool left_behind() const {
    return failed() || domain_failures_.load(std::memory_order_relaxed) != 0 || keeps_ended_.load(std::memory_order_relaxed);
  }

  const Bell& bell() const { return bell_; }

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Only valid once failed().
  const Status& failure() const { return failure_; }
  // Why operations of the domain cannot end well any more; null while they can.
  const Status* failure_for(const FailureDomain& domain) const {
    if (domain.failed()) {
      return &domain.failure();
    }
    return failed() ? &failure() : nullptr;
  }

  // Calls `body` with the baton, if it can be had before the deadline; false if not. For handles
  // that are made or destroyed outside an operation. `body` must not block on a peer.
  bool with_baton(Deadline deadline, const std::function<void(LoopToken&)>& body);

  // Stops the background thread, and ends what a failure left in flight. The engine can still be
  // driven by callers. Idempotent.
  void stop_background();

  // Operations posted and not yet completed.
  std::size_t outstanding() const { return outstanding_.load(std::memory_order_relaxed); }
  // How often a thread has slept while operations were under way.
  std::uint64_t sleeps() const { return sleeps_.load(std::memory_order_relaxed); }

 private:
  class BatonGuard;  // holds the baton for a block
  class Attendance;  // of a thread that waits: while one lives, the background thread leaves what is in flight to it
  using Ops = std::vector<std::shared_ptr<Op>>;

  // On its way from the holder of the baton to its completion, which runs when the baton was given
  // back.
  struct Ended {
    std::shared_ptr<Op> op;
    std::optional<Status> status;  // nothing: the transport ended it, finish() is still to come
  };

  // What came of driving: the time after it, and whether the baton was free.
  struct Drove {
    Clock::time_point now;
    bool held = false;
  };

  // With the baton.
  void suspect(LoopToken& token, std::shared_ptr<Op> op, Status status, bool ended_well);
  void judge(LoopToken& token);
  void admit(LoopToken& token, std::shared_ptr<Op> op);
  void admit_intake(LoopToken& token);
  void poll(LoopToken& token, const Op* until, int rounds);
  void expire(LoopToken& token, Clock::time_point now);
  void abandon_failed(LoopToken& token);
  void abandon(LoopToken& token, std::shared_ptr<Op> op);
  void fail_if_missing(Op& op);
  void look_at_losses(LoopToken& token, Clock::time_point now);

  // Without it.
  bool wait_attending(std::optional<Attendance>& here, Op& op, Deadline deadline, InterruptCheck interrupt);
  Drove drive(const Op* until, int polls);
  Drove drive_for(Parker& parker, const Op* until);
  void yield(Parker& parker, Clock::time_point now, bool waits);
  void rest(Parker& parker, Clock::time_point now, Op* waited_for, Deadline deadline);
  void start_now(std::shared_ptr<Op> op, Follow follow);
  void serve_intake();
  void deliver(std::span<Ended> ended);
  const Status* failure_for(const Op& op) const { return failure_for(op.domain()); }
  Status failure_of(LoopToken& token, const std::shared_ptr<Op>& op, const Status& reason);
  std::optional<Status> result_of(Op& op);
  bool complete(Op& op, Status status);
  Status time_out(const Op& op);
  Status given_up(const Op& op) const;

  void background();
  bool background_has_work() const {
    return outstanding_.load(std::memory_order_seq_cst) != 0 && attending_.load(std::memory_order_seq_cst) == 0;
  }

  const ParkPolicy policy_;
  const Clock::duration quiet_;  // see LossPolicy
  const Bell bell_;

  Mutex baton_;
  Pollable& transport_ TUCC_GUARDED_BY(baton_);
  Ops in_flight_ TUCC_GUARDED_BY(baton_);
  std::vector<Ended> ended_ TUCC_GUARDED_BY(baton_);
  Suspects suspects_ TUCC_GUARDED_BY(baton_);
  Ops abandoned_ TUCC_GUARDED_BY(baton_);      // given up, and the transport may still use their buffers
  Deadline earliest_ TUCC_GUARDED_BY(baton_);  // no operation in flight expires before

  // Written with the baton, read by anyone who rests.
  std::atomic<std::uint64_t> activity_{0};               // counts what happened to operations
  std::atomic<microseconds> patience_{microseconds(0)};  // the longest of those in flight
  std::atomic<bool> all_announced_{true};                // whether each of those in flight is
  std::atomic<bool> any_lost_{false};                    // a domain has lost a member
  std::atomic<bool> failed_{false};                      // after failure_

  std::atomic<Clock::time_point> give_way_until_{Clock::time_point()};  // by whoever waits

  Intake intake_;

  std::atomic<std::size_t> outstanding_{0};
  std::atomic<int> attending_{0};       // how many Attendances there are
  std::atomic<std::uint64_t> left_{0};  // operations whose caller went on with something else
  std::atomic<int> caller_core_{-1};    // where the last caller was who left something to be started
  std::atomic<std::uint64_t> sleeps_{0};

  std::atomic<Clock::rep> last_death_;  // when a domain last failed because a peer was gone
  std::atomic<std::uint64_t> domain_failures_{0};
  std::atomic<bool> keeps_ended_{false};  // operations that were a success
  std::uint64_t domain_failures_seen_ TUCC_GUARDED_BY(baton_) = 0;
  Mutex failure_mutex_;  // the first of several threads that report a failure wins
  Status failure_;       // written once, before failed_

  WakeUp wake_up_{[this] { return background_has_work(); }};  // of the background thread
  std::thread background_;
};

}  // namespace torch_ucc
