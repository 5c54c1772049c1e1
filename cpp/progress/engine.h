// The only object that advances operations. Owns the baton, the intake, the operations in flight
// and the background thread.
//
// A caller that posts or waits takes the baton if it is free and drives the engine itself, so that
// a small operation ends without a switch to another thread. An operation that starts slowly, and
// that its caller does not wait for, goes to the intake. The background thread drives only while
// operations are outstanding, no caller waits and the baton is free.
//
// No thread sleeps while it holds the baton. A thread that posts or waits does not block on the
// baton: if another thread holds it, the thread leaves its operation in the intake, or sleeps on
// the bell and tries again. Op::finish() and completions run after the thread has given the baton
// back.
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
  waits,   // calls wait() at once, so post() does not wake the background thread
  leaves,  // goes on with something else
};

class Engine {
 public:
  // `transport` must outlive the engine, which uses it only with the baton. `bell` wakes the
  // threads that sleep in the engine.
  Engine(Pollable& transport, ParkPolicy policy, Bell bell = Bell(), LossPolicy losses = {});
  // Joins the background thread. Does not wait for operations: operations in flight end with an
  // error, and their buffers are never freed, because the transport may still use them.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Takes the operation over. Never blocks. Any thread. The operations that one thread posts start
  // in that order. If the engine or the domain of `op` has failed, `op` is not started, and ends
  // with an error that contains the reason.
  void post(std::shared_ptr<Op> op, Follow follow);

  // Drives the engine, or sleeps, until `op` is done or `deadline` has passed; returns whether `op`
  // is done. `deadline` limits this wait, not the operation, so a caller may wait again. `op` must
  // be posted. If `interrupt` is not null, it is called every 250 ms, without the baton; wait()
  // does not catch what it throws. Any thread.
  bool wait(Op& op, Deadline deadline, InterruptCheck interrupt = nullptr);

  // Like post() and wait(), for a caller that does nothing in between. The caller attends from the
  // post on, so the background thread finds no work and can sleep.
  bool post_and_wait(const std::shared_ptr<Op>& op, Deadline deadline, InterruptCheck interrupt = nullptr);

  // Returns whether `op` is done. If the engine or the domain of `op` has failed, ends `op` first,
  // unless another thread is storing its result. Does not drive. Any thread.
  bool settled(Op& op);

  // For a caller that wants `op` to end without calling wait(). Asks the background thread to drive
  // at once. For an operation that starts slowly the thread is woken too, but first leaves its
  // caller the usual moment (see Napper): otherwise it could take the core from that caller. No
  // effect if `op` is not posted. Any thread.
  void drive_in_background(const Op& op);

  // Posts `op`, waits until it is done and returns its status. For operations of this backend, such
  // as the creation of a team. Only the deadline of `op` limits the wait.
  Status run(const std::shared_ptr<Op>& op);

  // Fails all operations in flight and all operations posted from now on. Only the first `reason`
  // counts. Returns at once: the operations end when a thread drives or waits. Any thread.
  void fail(Status reason);

  // Fails the operations of `domain` in this way. Operations of other domains go on.
  void fail(FailureDomain& domain, Status reason);

  // Reports that a member of the domain is lost. The domain fails when one of its operations needs
  // something that the member never sent, or when one may need something and nothing has arrived
  // for LossPolicy::quiet. Until then operations may still end well. Returns at once. Any thread.
  void lose(FailureDomain& domain, Loss loss);

  // Says that this rank may not hear of every death. From then on no success in doubt is believed,
  // because a member of the group may have died. Any thread.
  void miss_deaths() { misses_deaths_.store(true, std::memory_order_relaxed); }
  bool misses_deaths() const { return misses_deaths_.load(std::memory_order_relaxed); }

  // For an operation that shows its peers the data of a step. The step ended well at `since`, and
  // `doubt` says why its data may be wrong. Returns whether they can be believed. If not, the
  // operation must wait and ask again. A verdict against the step fails the domain.
  bool believes(LoopToken& token, FailureDomain& domain, const Status& doubt, Clock::time_point since);
  // Keeps `memory` of an operation that ended well for the life of the process: the transport may
  // still use it.
  void keep_for_transport(LoopToken& token, std::shared_ptr<void> memory);

  // Drives until no operation of `domain` is in flight, and then calls `then` (if not null) before
  // another one can start. Returns false, without that call, if `deadline` passes first, or if the
  // domain or the engine has failed. Looks once in any case, and waits half a second for the baton
  // to do so.
  bool drain(const FailureDomain& domain, Deadline deadline, const std::function<void(LoopToken&)>& then = nullptr);

  // Takes the callers' memory back from all operations of a domain that has failed, and waits until
  // no thread stores a result of the domain. Returns false if `deadline` passes first. If it returns
  // true, no thread works on the callers' memory from then on.
  bool take_back_all(const FailureDomain& domain, Deadline deadline);

  // Whether requests that never end may be left in the transport. Then the transport must not be
  // closed.
  bool left_behind() const {
    return failed() || domain_failures_.load(std::memory_order_relaxed) != 0 || keeps_ended_.load(std::memory_order_relaxed);
  }

  const Bell& bell() const { return bell_; }

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Only valid once failed().
  const Status& failure() const { return failure_; }
  // Returns why operations of the domain cannot end well any more; null while they can.
  const Status* failure_for(const FailureDomain& domain) const {
    if (domain.failed()) {
      return &domain.failure();
    }
    return failed() ? &failure() : nullptr;
  }

  // Waits for the baton and calls `body` with it. Returns false, without a call, if the baton is
  // not free before `deadline`. For handles that are created or destroyed outside an operation.
  // `body` must not wait for a peer.
  bool with_baton(Deadline deadline, const std::function<void(LoopToken&)>& body);

  // Stops and joins the background thread. If the engine has failed, also ends its operations.
  // Callers can still drive the engine. Idempotent.
  void stop_background();

  // Returns how many operations are posted and not yet completed.
  std::size_t outstanding() const { return outstanding_.load(std::memory_order_relaxed); }
  // Returns how often a thread has slept between polls.
  std::uint64_t sleeps() const { return sleeps_.load(std::memory_order_relaxed); }

 private:
  class BatonGuard;  // holds the baton for a block
  // While one exists, the background thread leaves the operations in flight to the caller that
  // waits
  class Attendance;
  using Ops = std::vector<std::shared_ptr<Op>>;

  // An operation that has ended, and that is completed after the baton is given back.
  struct Ended {
    std::shared_ptr<Op> op;
    // Nothing: the transport ended it well, and finish() must still run
    std::optional<Status> status;
  };

  // The result of driving.
  struct Drove {
    Clock::time_point now;  // the time afterwards
    bool held = false;      // whether the thread got the baton
  };

  // To be called with the baton.
  void suspect(LoopToken& token, std::shared_ptr<Op> op, Status status, bool ended_well);
  void judge(LoopToken& token);
  void admit(LoopToken& token, std::shared_ptr<Op> op);
  void admit_intake(LoopToken& token);
  void poll(LoopToken& token, const Op* until, int rounds);
  void expire(LoopToken& token, Clock::time_point now);
  void abandon_failed(LoopToken& token);
  void abandon_all_of(LoopToken& token, const std::function<bool(const Op&)>& has_failed);
  void abandon(LoopToken& token, std::shared_ptr<Op> op);
  void fail_if_missing(Op& op);
  void look_at_losses(LoopToken& token, Clock::time_point now);

  // To be called without the baton.
  bool wait_attending(std::optional<Attendance>& here, Op& op, Deadline deadline, InterruptCheck interrupt);
  Drove drive(const Op* until, int polls);
  Drove drive_for(Parker& parker, const Op* until);
  void yield(Parker& parker, Clock::time_point now, bool waits);
  void rest(Parker& parker, Clock::time_point now, Op* waited_for, Deadline deadline);
  void start_now(std::shared_ptr<Op> op, Follow follow);
  void serve_intake();
  void deliver(std::span<Ended> ended);
  const Status* failure_for(const Op& op) const { return failure_for(op.domain()); }
  // Whether the end of another rank can explain a doubt. death_seen(): when a rank ended last.
  bool can_believe(bool ended_well) const { return ended_well && !misses_deaths(); }
  Clock::time_point death_seen() const { return Clock::time_point(Clock::duration(last_death_.load(std::memory_order_acquire))); }
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
  // Given up, but the transport may still use their buffers
  Ops abandoned_ TUCC_GUARDED_BY(baton_);
  std::vector<std::shared_ptr<void>> kept_for_transport_ TUCC_GUARDED_BY(baton_);
  Deadline earliest_ TUCC_GUARDED_BY(baton_);  // no operation in flight expires before

  // Read by threads that rest between polls.
  std::atomic<std::uint64_t> activity_{0};  // grows when an operation advances or ends
  // The longest patience() of operations in flight
  std::atomic<microseconds> patience_{microseconds(0)};
  // Whether all operations in flight are announced
  std::atomic<bool> all_announced_{true};
  std::atomic<bool> any_lost_{false};  // a domain has lost a member
  std::atomic<bool> failed_{false};    // written after failure_

  // Until then callers that wait give way
  std::atomic<Clock::time_point> give_way_until_{Clock::time_point()};

  Intake intake_;

  std::atomic<std::size_t> outstanding_{0};
  std::atomic<int> attending_{0};       // how many Attendances exist
  std::atomic<std::uint64_t> left_{0};  // how many operations were posted with Follow::leaves
  // The core of the last caller that left an operation in the intake
  std::atomic<int> caller_core_{-1};
  std::atomic<std::uint64_t> sleeps_{0};

  // When a domain last lost a member, or failed because a peer was gone
  std::atomic<Clock::rep> last_death_;
  std::atomic<bool> misses_deaths_{false};
  std::atomic<std::uint64_t> domain_failures_{0};
  // An operation that ended well has left requests in the transport
  std::atomic<bool> keeps_ended_{false};
  std::uint64_t domain_failures_seen_ TUCC_GUARDED_BY(baton_) = 0;
  Mutex failure_mutex_;  // the first of several threads that report a failure wins
  Status failure_;       // written once, before failed_

  WakeUp wake_up_{[this] { return background_has_work(); }};  // for the background thread
  std::thread background_;
};

}  // namespace torch_ucc
