// How a thread waits for an operation: it drives, then rests, and drives again.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <optional>

#include "progress/engine.h"

namespace torch_ucc {
namespace {

// The time in which this process did not compute, since a mark that is a millisecond old at most.
class TimeOfOthers {
 public:
  // Sets the mark, unless it is recent enough: it costs a system call.
  void mark(Clock::time_point now) {
    if (now - at_ > std::chrono::milliseconds(1)) {
      at_ = now;
      used_ = used();
    }
  }
  Clock::duration until(Clock::time_point now) const { return now - at_ - (used() - used_); }

 private:
  static Clock::duration used() {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  }
  Clock::time_point at_;
  Clock::duration used_{};
};

}  // namespace

class Engine::Attendance {
 public:
  explicit Attendance(Engine& engine) : engine_(engine) { engine_.attending_.fetch_add(1, std::memory_order_seq_cst); }
  ~Attendance() {
    engine_.attending_.fetch_sub(1, std::memory_order_seq_cst);
    if (!engine_.intake_.empty()) {
      engine_.wake_up_.rouse();  // another thread left an operation there for this caller to start
    } else {
      engine_.wake_up_.wake_if_asleep();
    }
  }
  Attendance(const Attendance&) = delete;
  Attendance& operator=(const Attendance&) = delete;

 private:
  Engine& engine_;
};

bool Engine::wait(Op& op, Deadline deadline, InterruptCheck interrupt) {
  if (op.completion().done()) {
    return true;
  }
  std::optional<Attendance> here(std::in_place, *this);
  return wait_attending(here, op, deadline, interrupt);
}

bool Engine::post_and_wait(const std::shared_ptr<Op>& op, Deadline deadline, InterruptCheck interrupt) {
  std::optional<Attendance> here(std::in_place, *this);
  post(op, Follow::waits);
  return op->completion().done() || wait_attending(here, *op, deadline, interrupt);
}

bool Engine::wait_attending(std::optional<Attendance>& here, Op& op, Deadline deadline, InterruptCheck interrupt) {
  const Clock::time_point begun = Clock::now();
  Deadline ask = interrupt != nullptr ? Deadline::after(kInterruptEvery, begun) : Deadline();
  Parker parker(policy_, begun);
  parker.set_patience(op.patience());
  parker.give_way(give_way_until_.load(std::memory_order_relaxed));
  while (true) {
    const Clock::time_point now = drive_for(parker, &op).now;
    if (op.deadline().passed(now) && !op.completion().done() && op.take_back(Op::After::given_up)) {
      complete(op, time_out(op));  // also if another thread has the baton
    }
    if (settled(op) || deadline.passed(now)) {
      break;
    }
    if (ask.passed(now)) {
      // The background thread drives while the check waits for the GIL or runs a signal handler
      here.reset();
      interrupt();
      here.emplace(*this);
      ask = Deadline::after(kInterruptEvery);
    }
    rest(parker, now, &op, std::min({deadline, op.deadline(), ask}));
  }
  return op.completion().done();
}

// Drives for as many polls as the parker says. Restarts the parker if an operation has advanced.
Engine::Drove Engine::drive_for(Parker& parker, const Op* until) {
  const std::uint64_t before = activity_.load(std::memory_order_relaxed);
  const Drove drove = drive(until, parker.polls());
  if (activity_.load(std::memory_order_relaxed) != before) {
    parker.restart(drove.now);
  }
  return drove;
}

// If a yield takes long, another thread computes on the core; then threads that wait only sleep
// between polls for a while. `waits`: the thread is a caller. The background thread shares the core
// with its own caller, which may compute as long as it likes, so for that thread only the time counts
// in which this process did not compute: 40 MB of gradients with 2 ranks on 2 cores take 12 ms this
// way, and 17 ms if the background thread gives way to its caller, too. A step of DDP beside 6 busy
// processes takes 50 ms, and 136 ms if the background thread never gives way (AMD EPYC, 2 cores).
//
// With more ranks than cores, where no thread spins, the background thread never gives way, because
// those who compute are mostly ranks of the same job (4 ranks on 2 cores: 20 ms a step, and 23 ms if
// it does).
void Engine::yield(Parker& parker, Clock::time_point now, bool waits) {
  thread_local TimeOfOthers others;
  const bool may_give_way = waits || policy_.spin.count() != 0;
  if (may_give_way && !waits) {
    others.mark(now);
  }
  ::sched_yield();
  if (!may_give_way) {
    return;
  }
  const Clock::time_point back = Clock::now();
  if (back - now > policy_.crowded_yield && (waits || others.until(back) > policy_.crowded_yield)) {
    give_way_until_.store(back + policy_.give_way, std::memory_order_relaxed);
    parker.give_way(back + policy_.give_way);
  }
}

// What a thread does between two rounds of polls. `waited_for` is null in the background thread.
void Engine::rest(Parker& parker, Clock::time_point now, Op* waited_for, Deadline deadline) {
  switch (parker.next(now)) {
    case Parker::Step::poll_again:
      return;
    case Parker::Step::yield:
      yield(parker, now, waited_for != nullptr);
      return;
    case Parker::Step::pause: {
      Bell::Sleep sleep(bell_);
      const Clock::time_point before = now;
      // Sees all that came before the announcement; later events ring
      now = drive_for(parker, waited_for).now;
      const bool over = waited_for != nullptr ? settled(*waited_for) : !background_has_work() || wake_up_.stopped();
      if (over || parker.moves(now - before)) {
        return;
      }
      sleeps_.fetch_add(1, std::memory_order_relaxed);
      const microseconds pause = parker.take_pause(all_announced_.load(std::memory_order_relaxed));
      if (sleep.wait(std::min<Clock::duration>(pause, deadline.left(now)))) {
        parker.restart(Clock::now());
      }
      return;
    }
  }
}

bool Engine::settled(Op& op) {
  if (op.posted() && failure_for(op) != nullptr && !op.completion().done() && op.take_back(Op::After::given_up)) {
    complete(op, given_up(op));
  }
  return op.completion().done();
}

Status Engine::run(const std::shared_ptr<Op>& op) {
  post_and_wait(op, Deadline());  // the operation ends by its own deadline
  return op->completion().status();
}

}  // namespace torch_ucc
