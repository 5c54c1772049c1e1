#include "progress/engine.h"

#include <sched.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "base/core.h"
#include "trace/dumper.h"

namespace torch_ucc {
namespace {

// Keeps an operation of a destroyed engine, or its buffers, until the process ends, because UCC or
// UCX may still use the buffers.
void keep_forever(std::shared_ptr<void> op) {
  static Mutex mutex;
  static auto* kept = new std::vector<std::shared_ptr<void>>();
  const MutexLock lock(mutex);
  kept->push_back(std::move(op));
}

}  // namespace

// Tries to take the baton. The destructor gives it back, and then completes the operations that
// have ended.
class Engine::BatonGuard {
 public:
  explicit BatonGuard(Engine& engine) TUCC_NO_THREAD_SAFETY_ANALYSIS : engine_(engine), held_(engine.baton_.try_lock()) {}
  ~BatonGuard() TUCC_NO_THREAD_SAFETY_ANALYSIS {
    if (!held_) {
      return;
    }
    if (engine_.ended_.empty()) {
      engine_.baton_.unlock();
      return;
    }
    // The usual case; the vector keeps its memory for the next operation
    if (engine_.ended_.size() == 1) {
      Ended only = std::move(engine_.ended_.front());
      engine_.ended_.clear();
      engine_.baton_.unlock();
      engine_.deliver({&only, 1});
      return;
    }
    std::vector<Ended> ended;
    ended.swap(engine_.ended_);
    engine_.baton_.unlock();
    engine_.deliver(ended);
  }
  BatonGuard(const BatonGuard&) = delete;
  BatonGuard& operator=(const BatonGuard&) = delete;

  explicit operator bool() const { return held_; }
  LoopToken& token() { return token_; }  // only if held

 private:
  Engine& engine_;
  const bool held_;
  LoopToken token_;
};

Engine::Engine(Pollable& transport, ParkPolicy policy, Bell bell, LossPolicy losses)
    : policy_(policy),
      quiet_(losses.quiet),
      bell_(std::move(bell)),
      transport_(transport),
      suspects_(losses),
      last_death_((Clock::now() - std::chrono::hours(1)).time_since_epoch().count()),
      background_([this] { background(); }) {}

Engine::~Engine() {
  stop_background();
  if (BatonGuard baton(*this); baton) {
    if (outstanding() != 0) {
      fail(Status(StatusCode::closed, "the engine was destroyed"));
    }
    admit_intake(baton.token());
    abandon_failed(baton.token());
    judge(baton.token());
    for (auto& op : abandoned_) {
      keep_forever(std::move(op));
    }
    for (auto& memory : kept_for_transport_) {
      keep_forever(std::move(memory));
    }
  }
}

void Engine::post(std::shared_ptr<Op> op, Follow follow) {
  outstanding_.fetch_add(1, std::memory_order_seq_cst);
  op->mark_posted();
  if (follow == Follow::leaves && op->starts_slowly() && failure_for(*op) == nullptr) {
    if (policy_.beside_caller) {
      caller_core_.store(current_core(), std::memory_order_relaxed);
    }
    intake_.add(std::move(op));
    left_.fetch_add(1, std::memory_order_relaxed);
    bell_.ring();  // a caller that sleeps in the engine wakes and starts it
    wake_up_.rouse();
    if (failed()) {
      serve_intake();  // the background thread may have been stopped meanwhile
    }
    return;
  }
  start_now(std::move(op), follow);
  if (follow == Follow::leaves) {
    left_.fetch_add(1, std::memory_order_relaxed);
    wake_up_.wake_if_asleep();
  }
}

void Engine::start_now(std::shared_ptr<Op> op, Follow follow) {
  if (BatonGuard baton(*this); baton) {
    const Op* const mine = op.get();
    admit_intake(baton.token());
    admit(baton.token(), std::move(op));
    // A caller that leaves polls only once
    poll(baton.token(), mine, follow == Follow::leaves ? 1 : policy_.polls_after_post);
  } else {
    intake_.add(std::move(op));
  }
  serve_intake();
}

// Starts operations that were added to the intake after the last holder of the baton had emptied
// it.
void Engine::serve_intake() {
  while (!intake_.empty()) {
    BatonGuard baton(*this);
    if (!baton) {
      return;  // the holder comes here when it gives the baton back
    }
    admit_intake(baton.token());
  }
}

void Engine::admit_intake(LoopToken& token) {
  token.check();
  for (auto& op : intake_.take_all()) {
    admit(token, std::move(op));
  }
}

void Engine::admit(LoopToken& token, std::shared_ptr<Op> op) {
  token.check();
  baton_.assert_held();
  if (op->domain().has_lost() && !op->domain().failed()) {
    fail_if_missing(*op);  // before the operation sends data
    ++op->domain().quiet().advances;
  }
  if (failure_for(*op) != nullptr) {
    Status failure = given_up(*op);
    ended_.push_back({std::move(op), std::move(failure)});
    return;
  }
  if (Status started = op->start(token); !started.ok()) {
    suspect(token, std::move(op), std::move(started), false);
    return;
  }
  if (op->deadline() < earliest_) {
    earliest_ = op->deadline();
  }
  op->recording().posted();
  op->announce();
  const bool first = in_flight_.empty();
  patience_.store(first ? op->patience() : std::max(patience_.load(std::memory_order_relaxed), op->patience()),
                  std::memory_order_relaxed);
  all_announced_.store(op->is_announced() && (first || all_announced_.load(std::memory_order_relaxed)),
                       std::memory_order_relaxed);
  in_flight_.push_back(std::move(op));
}

void Engine::poll(LoopToken& token, const Op* until, int rounds) {
  token.check();
  baton_.assert_held();
  abandon_failed(token);
  judge(token);
  if (!abandoned_.empty()) {
    std::erase_if(abandoned_, [&](const std::shared_ptr<Op>& op) { return op->is_drained(token); });
  }
  bool until_ended = false;
  for (int round = 0; round < rounds && !in_flight_.empty() && !until_ended; ++round) {
    if (Status progressed = transport_.progress(token); !progressed.ok() && !suspects_.hold_back(progressed, Clock::now())) {
      fail(std::move(progressed));
      abandon_failed(token);
      return;
    }
    for (std::size_t i = 0; i < in_flight_.size();) {
      const Op::State state = in_flight_[i]->poll(token);
      if (state != Op::State::in_flight) {
        activity_.store(activity_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        if (any_lost_.load(std::memory_order_relaxed)) {
          ++in_flight_[i]->quiet().advances;
          ++in_flight_[i]->domain().quiet().advances;
        }
      }
      if (state != Op::State::ended) {
        ++i;
        continue;
      }
      until_ended |= in_flight_[i].get() == until;
      if (Status status = in_flight_[i]->transport_status(); !status.ok()) {
        suspect(token, std::move(in_flight_[i]), std::move(status), false);
      } else if (Status doubt = in_flight_[i]->doubt(); !doubt.ok()) {
        suspect(token, std::move(in_flight_[i]), std::move(doubt), true);
      } else {
        ended_.push_back({std::move(in_flight_[i]), std::nullopt});
      }
      in_flight_[i] = std::move(in_flight_.back());
      in_flight_.pop_back();
    }
  }
}

bool Engine::drain(const FailureDomain& domain, Deadline deadline, const std::function<void(LoopToken&)>& then) {
  constexpr std::chrono::milliseconds kToLook{500};  // for the baton, before nothing is known
  Parker parker(policy_, Clock::now());
  bool looked = false;
  while (!failed() && !domain.failed()) {
    bool busy = true;
    with_baton(looked ? deadline : std::max(deadline, Deadline::after(kToLook)), [&](LoopToken& token) {
      looked = true;
      baton_.assert_held();
      admit_intake(token);
      poll(token, nullptr, parker.polls());
      busy = std::any_of(in_flight_.begin(), in_flight_.end(), [&](const auto& op) { return &op->domain() == &domain; }) ||
             suspects_.has_of(domain);
      if (!busy && then != nullptr && !failed() && !domain.failed()) {
        then(token);
      }
    });
    const Clock::time_point now = Clock::now();
    if (!busy) {
      // After a failure the operations were given up, not drained
      return !failed() && !domain.failed();
    }
    if (deadline.passed(now)) {
      return false;
    }
    if (parker.next(now) == Parker::Step::pause) {
      std::this_thread::sleep_for(parker.take_pause());
    } else {
      ::sched_yield();
    }
  }
  return false;
}

bool Engine::take_back_all(const FailureDomain& domain, Deadline deadline) {
  const bool taken_back = with_baton(deadline, [&](LoopToken& token) {
    baton_.assert_held();
    admit_intake(token);
    // Not by the count of failures: the thread that failed the domain may not have counted it yet
    abandon_all_of(token, [&](const Op& op) { return &op.domain() == &domain; });
    judge(token);
  });
  while (domain.is_storing()) {
    if (deadline.passed()) {
      return false;
    }
    ::sched_yield();
  }
  return taken_back;
}

// Finishes an operation that the transport ended well, and returns its result. Returns nothing if
// another thread has taken the caller's memory back and completes the operation.
std::optional<Status> Engine::result_of(Op& op) {
  MemoryLease::Use use(op.lease());
  if (!use) {
    return op.goes_on_alone() ? std::optional(Status(
                                    StatusCode::closed,
                                    op.describe() + " ended after its caller had stopped waiting, so its result was not stored"))
                              : std::nullopt;
  }
  const FailureDomain::Storing storing(op.domain());
  if (failure_for(op) != nullptr) {
    return given_up(op);
  }
  Status result;
  try {
    result = op.finish();
  } catch (const std::exception& error) {
    result = Status(StatusCode::internal, op.describe() + " failed while its result was stored: " + error.what());
  }
  use.settle();
  return result;
}

void Engine::deliver(std::span<Ended> ended) {
  for (auto& [op, status] : ended) {
    if (!status) {
      status = result_of(*op);
    }
    if (status) {
      complete(*op, *std::move(status));
    }
    op = nullptr;  // the vector need not keep it for the others
  }
}

// Returns false if the operation was completed before. An operation that fails first loses the
// lease, so that it does not touch its caller's memory afterwards.
bool Engine::complete(Op& op, Status status) {
  const StatusCode code = status.code();
  if (code != StatusCode::ok) {
    op.take_back(Op::After::given_up);
  }
  // Before the completion: a thread that sees it may read the recorder at once
  op.record_end(code);
  if (code != StatusCode::ok) {
    trace::request_dump(trace::name(code));
  }
  if (!op.completion().complete(std::move(status))) {
    return false;
  }
  if (code != StatusCode::ok) {
    op.let_go();
  }
  outstanding_.fetch_sub(1, std::memory_order_seq_cst);
  bell_.ring();  // another thread may wait for the operation
  return true;
}

// Drives once, if the baton is free.
Engine::Drove Engine::drive(const Op* until, int polls) {
  Drove drove;
  {
    BatonGuard baton(*this);
    drove.held = static_cast<bool>(baton);
    if (baton) {
      admit_intake(baton.token());
      poll(baton.token(), until, polls);
    }
    drove.now = Clock::now();
    if (baton) {
      expire(baton.token(), drove.now);
    }
  }
  serve_intake();
  return drove;
}

bool Engine::with_baton(Deadline deadline, const std::function<void(LoopToken&)>& body) {
  while (true) {
    bool done = false;
    {
      BatonGuard baton(*this);
      if (baton) {
        body(baton.token());
        done = true;
      }
    }
    if (done) {
      serve_intake();
      return true;
    }
    if (deadline.passed()) {
      return false;
    }
    ::sched_yield();
  }
}

}  // namespace torch_ucc
