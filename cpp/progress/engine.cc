#include "progress/engine.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "base/core.h"
#include "trace/dumper.h"

namespace torch_ucc {
namespace {

// Of the background thread: how long it leaves an operation to a caller who may come back to wait for it, and how long it
// stays half awake after its last work (20 x 100 us). While callers post and come back each time its naps double, so that none is
// longer than they have done so: on machines without a core to spare a rank pays for each wake-up, 17 us. The first small
// operation left alone after that may wait for the rest of a nap; what starts slowly, and who asks or has a future, ends it.
constexpr microseconds kGrace{50};
constexpr microseconds kNap{100};
constexpr microseconds kLongestNap{4000};
constexpr microseconds kLongestNapBesideWork{1000};  // who has the baton may give it back and go on with something else
constexpr int kNapsBeforeSleep = 20;

// For so long after a peer was gone the transport's errors are put down to that, where they can be anybody's.
constexpr std::chrono::seconds kAftermath{10};

// A success in doubt that somebody's end explains is held back no longer than this: members of its own group for whom it was a
// success may leave meanwhile, and a second later that counts.
constexpr milliseconds kBelief{600};

// Operations of an engine that is gone, which the network can still touch. Never freed, on purpose.
void keep_forever(std::shared_ptr<Op> op) {
  static Mutex mutex;
  static auto* kept = new std::vector<std::shared_ptr<Op>>();
  const MutexLock lock(mutex);
  kept->push_back(std::move(op));
}

}  // namespace

// Tries to take the baton. Who leaves the block with it gives it back, then completes what ended meanwhile.
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
    if (engine_.ended_.size() == 1) {  // as nearly always: what held it serves the next one, too
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

class Engine::Attendance {
 public:
  explicit Attendance(Engine& engine) : engine_(engine) { engine_.attending_.fetch_add(1, std::memory_order_seq_cst); }
  ~Attendance() {
    engine_.attending_.fetch_sub(1, std::memory_order_seq_cst);
    if (engine_.intake_size_.load(std::memory_order_seq_cst) != 0) {
      engine_.rouse_background();  // left to us after we last held the baton
    } else {
      engine_.wake_background_if_needed();
    }
  }
  Attendance(const Attendance&) = delete;
  Attendance& operator=(const Attendance&) = delete;

 private:
  Engine& engine_;
};

Engine::Engine(Pollable& transport, ParkPolicy policy, Bell bell, LossPolicy losses)
    : policy_(policy),
      losses_(losses),
      bell_(std::move(bell)),
      transport_(transport),
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
  }
}

void Engine::post(std::shared_ptr<Op> op, Follow follow) {
  outstanding_.fetch_add(1, std::memory_order_seq_cst);
  op->mark_posted();
  if (follow == Follow::leaves && op->starts_slowly() && failure_for(*op) == nullptr) {
    if (policy_.beside_caller) {
      caller_core_.store(current_core(), std::memory_order_relaxed);
    }
    enqueue(std::move(op));
    left_.fetch_add(1, std::memory_order_relaxed);
    bell_.ring();  // whoever sleeps for another starts it
    rouse_background();
    if (failed()) {
      serve_intake();  // the background thread may have been stopped meanwhile
    }
    return;
  }
  start_now(std::move(op), follow);
  if (follow == Follow::leaves) {
    left_.fetch_add(1, std::memory_order_relaxed);
    wake_background_if_needed();
  }
}

void Engine::start_now(std::shared_ptr<Op> op, Follow follow) {
  if (BatonGuard baton(*this); baton) {
    const Op* const mine = op.get();
    admit_intake(baton.token());
    admit(baton.token(), std::move(op));
    poll(baton.token(), mine, follow == Follow::leaves ? 1 : policy_.polls_after_post);  // who leaves has better things to do
  } else {
    enqueue(std::move(op));
  }
  serve_intake();
}

void Engine::enqueue(std::shared_ptr<Op> op) {
  const MutexLock lock(intake_mutex_);
  intake_.push_back(std::move(op));
  intake_size_.fetch_add(1, std::memory_order_seq_cst);
}

// Whoever held the baton takes the intake before giving it back, but may have looked just before the last append.
void Engine::serve_intake() {
  while (intake_size_.load(std::memory_order_seq_cst) != 0) {
    BatonGuard baton(*this);
    if (!baton) {
      return;  // the holder comes here when it gives the baton back
    }
    admit_intake(baton.token());
  }
}

void Engine::admit_intake(LoopToken& token) {
  token.check();
  if (intake_size_.load(std::memory_order_relaxed) == 0) {
    return;
  }
  Ops waiting;
  {
    const MutexLock lock(intake_mutex_);
    waiting.swap(intake_);
    intake_size_.store(0, std::memory_order_seq_cst);
  }
  for (auto& op : waiting) {
    admit(token, std::move(op));
  }
}

void Engine::admit(LoopToken& token, std::shared_ptr<Op> op) {
  token.check();
  baton_.assert_held();
  if (op->domain().has_lost() && !op->domain().failed()) {
    fail_if_missing(*op);  // before anything of it is sent
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

// A transport notices the end of a peer by its own connections, and the news who it was comes a
// moment later. Until then the engine reports neither an error that names nobody nor a success that
// may be none.
void Engine::suspect(LoopToken& token, std::shared_ptr<Op> op, Status status, bool ended_well) {
  baton_.assert_held();
  if (status.code() == StatusCode::transport && losses_.verdict.count() != 0) {
    suspects_.push_back({std::move(op), std::move(status), ended_well, Clock::now()});
  } else {
    Status failure = failure_of(token, op, status);
    ended_.push_back({std::move(op), std::move(failure)});
  }
}

void Engine::judge(LoopToken& token) {
  baton_.assert_held();
  if (suspects_.empty() && !unexplained_) {
    return;
  }
  const Clock::time_point now = Clock::now();
  const Clock::time_point last_death{Clock::duration(last_death_.load(std::memory_order_acquire))};
  const bool explained = now - last_death < kAftermath + losses_.verdict;
  if (unexplained_ && explain_by_.passed(now)) {
    if (!explained) {
      fail(*unexplained_);
    }
    unexplained_.reset();
  }
  std::erase_if(suspects_, [&](Suspect& each) {
    baton_.assert_held();
    FailureDomain& domain = each.op->domain();
    if (!domain.failed() && domain.has_lost()) {
      fail(domain, domain.losses().front().reason);
    }
    if (failure_for(*each.op) != nullptr) {
      Status failure = given_up(*each.op);
      ended_.push_back({each.op, std::move(failure)});
      abandon(token, std::move(each.op));
      return true;
    }
    const bool believed = each.ended_well && explained;
    if (now - each.since < (believed ? std::min(losses_.verdict, kBelief) : losses_.verdict)) {
      return false;
    }
    if (believed) {  // a process has ended, but no member of this group
      if (!each.op->is_drained(token)) {
        abandoned_.push_back(each.op);
        keeps_ended_.store(true, std::memory_order_relaxed);
      }
      ended_.push_back({std::move(each.op), std::nullopt});
    } else {
      Status failure = failure_of(token, each.op, each.status);
      ended_.push_back({std::move(each.op), std::move(failure)});
    }
    return true;
  });
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
    if (Status progressed = transport_.progress(token); !progressed.ok()) {
      if (losses_.verdict.count() == 0) {
        fail(std::move(progressed));
        abandon_failed(token);
        return;
      }
      if (!unexplained_) {
        unexplained_ = std::move(progressed);
        explain_by_ = Deadline::after(losses_.verdict);
      }
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

void Engine::expire(LoopToken& token, Clock::time_point now) {
  token.check();
  baton_.assert_held();
  if (any_lost_.load(std::memory_order_acquire)) {
    look_at_losses(token, now);
  }
  if (!earliest_.passed(now)) {
    return;
  }
  earliest_ = Deadline();
  for (const auto& op : in_flight_) {
    if (op->deadline().passed(now)) {
      if (op->take_back(Op::After::given_up)) {
        ended_.push_back({op, time_out(*op)});  // before abandon_failed() gives it another reason
      }
    } else if (op->deadline() < earliest_) {
      earliest_ = op->deadline();
    }
  }
  abandon_failed(token);
}

// Fails the domain if the operation needs what a lost member never sent.
void Engine::fail_if_missing(Op& op) {
  for (const Loss& loss : op.domain().losses()) {
    if (op.need_of(loss) == Op::Need::missing) {
      fail(op.domain(), loss.reason);
    }
  }
}

// Fails the domains with an operation that needs something of a lost member which does not come.
void Engine::look_at_losses(LoopToken& token, Clock::time_point now) {
  token.check();
  baton_.assert_held();
  for (const auto& op : in_flight_) {
    FailureDomain& domain = op->domain();
    if (!domain.has_lost() || domain.failed()) {
      continue;
    }
    fail_if_missing(*op);
    for (const Loss& loss : domain.losses()) {
      const Op::Need need = op->need_of(loss);
      if ((need == Op::Need::direct && op->quiet().lasts(now, losses_.quiet)) ||
          (need == Op::Need::relayed && domain.quiet().lasts(now, losses_.quiet))) {
        fail(domain, loss.reason);
      }
    }
  }
  abandon_failed(token);
}

// An operation past its deadline cannot be cancelled in UCC, and what it left behind could be matched by a later one of its
// group: the whole group fails with it.
Status Engine::time_out(const Op& op) {
  std::string why = op.waits_for();
  if (why.empty()) {
    const std::string seen = op.domain().observe();
    why = "before every rank of the group had taken part." + (seen.empty() ? "" : " " + seen);
  } else {
    why = "while it still waited for " + why + ".";
  }
  Status status(StatusCode::timeout, op.describe() + " timed out: its timeout passed " + why +
                                         " The group cannot be used any more; destroy it and create a new one.");
  fail(op.domain(), status);
  return status;
}

// Why nothing can come of it any more; null while something can.
const Status* Engine::failure_for(const Op& op) const {
  if (op.domain().failed()) {
    return &op.domain().failure();
  }
  return failed() ? &failure() : nullptr;
}

// Only once there is a failure for it.
Status Engine::given_up(const Op& op) const {
  const Status& reason = *failure_for(op);
  return Status(reason.code() == StatusCode::peer_gone ? StatusCode::peer_gone : StatusCode::closed,
                op.describe() + " was given up because its group had failed: " + reason.message());
}

void Engine::abandon_failed(LoopToken& token) {
  token.check();
  baton_.assert_held();
  const std::uint64_t failures = domain_failures_.load(std::memory_order_acquire);
  if (!failed() && failures == domain_failures_seen_) {
    return;
  }
  domain_failures_seen_ = failures;
  std::erase_if(in_flight_, [&](std::shared_ptr<Op>& op) {
    baton_.assert_held();
    if (failure_for(*op) == nullptr) {
      return false;
    }
    ended_.push_back({op, given_up(*op)});
    abandon(token, std::move(op));
    return true;
  });
}

// Takes the caller's memory back at once, so that what the transport still does with the operation
// stays within its buffers.
void Engine::abandon(LoopToken& token, std::shared_ptr<Op> op) {
  baton_.assert_held();
  op->take_back(Op::After::given_up);
  op->cancel(token);
  abandoned_.push_back(std::move(op));
}

bool Engine::drain(const FailureDomain& domain, Deadline deadline) {
  Parker parker(policy_, Clock::now());
  while (!failed() && !domain.failed()) {
    bool busy = true;
    with_baton(deadline, [&](LoopToken& token) {
      baton_.assert_held();
      admit_intake(token);
      poll(token, nullptr, parker.polls());
      busy = std::any_of(in_flight_.begin(), in_flight_.end(), [&](const auto& op) { return &op->domain() == &domain; }) ||
             std::any_of(suspects_.begin(), suspects_.end(), [&](const auto& each) { return &each.op->domain() == &domain; });
    });
    const Clock::time_point now = Clock::now();
    if (!busy) {
      return !failed() && !domain.failed();  // else they were given up, not drained
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

void Engine::fail(Status reason) {
  const MutexLock lock(failure_mutex_);
  if (!failed()) {
    failure_ = std::move(reason);
    failed_.store(true, std::memory_order_release);
    bell_.ring();
  }
}

void Engine::lose(FailureDomain& domain, Loss loss) {
  last_death_.store(Clock::now().time_since_epoch().count(), std::memory_order_release);
  domain.lose(std::move(loss));
  any_lost_.store(true, std::memory_order_release);
  bell_.ring();
  call_background();  // for what nobody waits for
}

void Engine::fail(FailureDomain& domain, Status reason) {
  if (reason.code() == StatusCode::peer_gone) {
    last_death_.store(Clock::now().time_since_epoch().count(), std::memory_order_release);
  }
  if (domain.fail(std::move(reason))) {
    domain_failures_.fetch_add(1, std::memory_order_release);
    bell_.ring();
    call_background();  // ends what nobody waits for
  }
}

// A failure of the transport leaves requests behind that nobody can cancel: the group fails with the operation.
Status Engine::failure_of(LoopToken& token, const std::shared_ptr<Op>& op, const Status& reason) {
  Status status(reason.code(), op->describe() + ": " + reason.message());
  if (status.code() == StatusCode::transport) {
    fail(op->domain(), status);
    abandon(token, op);
  }
  return status;
}

// Of an operation that the transport ended well. Nothing if another thread took the caller's memory
// back and ends it.
std::optional<Status> Engine::result_of(Op& op) {
  MemoryLease::Use use(op.lease());
  if (!use) {
    return op.goes_on_alone() ? std::optional(Status(StatusCode::closed, op.describe() + " went on without its caller"))
                              : std::nullopt;
  }
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

// An operation that failed must not touch its caller's memory afterwards.
bool Engine::complete(Op& op, Status status) {
  const StatusCode code = status.code();
  if (code != StatusCode::ok) {
    op.take_back(Op::After::given_up);
  }
  op.record_end(code);  // before anybody sees it: who does may read the recorder at once
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
  bell_.ring();  // another thread may sleep for it
  return true;
}

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
      complete(op, time_out(op));  // also when the baton could not be had
    }
    if (settled(op) || deadline.passed(now)) {
      break;
    }
    if (ask.passed(now)) {
      here.reset();  // the check may wait for the GIL or run a signal handler: the background thread drives meanwhile
      interrupt();
      here.emplace(*this);
      ask = Deadline::after(kInterruptEvery);
    }
    rest(parker, now, &op, std::min({deadline, op.deadline(), ask}));
  }
  return op.completion().done();
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

// Polls for a while; the parker starts over if it saw anything happen.
Engine::Drove Engine::drive_for(Parker& parker, const Op* until) {
  const std::uint64_t before = activity_.load(std::memory_order_relaxed);
  const Drove drove = drive(until, parker.polls());
  if (activity_.load(std::memory_order_relaxed) != before) {
    parker.restart(drove.now);
  }
  return drove;
}

// Who waits gives way to whoever computes on its core. The background thread only yields: it shares its core with its own
// caller, who loses more by being interrupted time and again (40 MB of gradients, 2 ranks on 2 cores: 17 ms, and 12 so), and
// who is let in by a yield anyway.
void Engine::yield(Parker& parker, Clock::time_point now, bool waits) {
  ::sched_yield();
  if (!waits) {
    return;
  }
  const Clock::time_point back = Clock::now();
  if (back - now > policy_.crowded_yield) {
    give_way_until_.store(back + policy_.give_way, std::memory_order_relaxed);
    parker.give_way(back + policy_.give_way);
  }
}

// Between two rounds of polling. `waited_for` is null in the background thread.
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
      now = drive_for(parker, waited_for).now;  // what came before the announcement is seen here, what comes later rings
      const bool over = waited_for != nullptr ? settled(*waited_for) : !background_has_work() || stopping_.load();
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
  if (failure_for(op) != nullptr && !op.completion().done() && op.take_back(Op::After::given_up)) {
    complete(op, given_up(op));
  }
  return op.completion().done();
}

Status Engine::run(const std::shared_ptr<Op>& op) {
  post_and_wait(op, Deadline());  // the operation's own deadline ends it
  return op->completion().status();
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

bool Engine::background_has_work() const {
  return outstanding_.load(std::memory_order_seq_cst) != 0 && attending_.load(std::memory_order_seq_cst) == 0;
}

// The flag spares the system call while the background thread is up anyway. It looks for work after it raised the flag, and
// here work was counted before the flag is read: one of the two sees the other.
void Engine::wake_background_if_needed() {
  if (background_has_work() && background_asleep_.load(std::memory_order_seq_cst)) {
    const std::lock_guard<std::mutex> lock(background_mutex_);
    background_wake_.notify_one();
  }
}

void Engine::stop_background() {
  {
    const std::lock_guard<std::mutex> lock(background_mutex_);
    stopping_.store(true, std::memory_order_seq_cst);
    background_wake_.notify_one();
  }
  bell_.ring();
  if (background_.joinable()) {
    background_.join();
  }
  if (failed()) {
    drive(nullptr, 1);  // who waits for a future relied on the background thread to end what was given up
  }
}

// Sleeps until something is left that nobody waits for, gives the caller a moment to come back and wait after all, or to go on,
// then drives, unless somebody else does. It lingers before it sleeps again, so that a caller who posts and waits in turns pays
// no system calls.
void Engine::background() {
  ::pthread_setname_np(::pthread_self(), "ucc-progress");
  ::prctl(PR_SET_TIMERSLACK, 5000UL);  // 5 us instead of 50: the pauses below are short
  std::optional<Parker> parker;
  std::uint64_t ours = 0;  // up to this operation nobody came back in time
  microseconds length = kNap;
  int idle_naps = kNapsBeforeSleep;
  while (!stopping_.load(std::memory_order_seq_cst)) {
    const std::uint64_t left = left_.load(std::memory_order_relaxed);
    const bool wanted = !parker && wanted_.exchange(false);  // called in vain if there is no work now
    const bool work = background_has_work();
    const bool goes_on = parker && intake_size_.load(std::memory_order_relaxed) != 0;
    if (work && (left == ours || goes_on || wanted)) {
      ours = left;
      idle_naps = 0;
      if (!parker) {
        const int core = caller_core_.exchange(-1, std::memory_order_relaxed);
        if (core >= 0 && core != current_core() && intake_size_.load(std::memory_order_relaxed) != 0) {
          move_to_core(core);
        }
        parker.emplace(policy_, Clock::now());
      }
      parker->set_patience(patience_.load(std::memory_order_relaxed));
      if (const Drove drove = drive_for(*parker, nullptr); drove.held) {
        length = kNap;
        rest(*parker, drove.now, nullptr, Deadline());
      } else {  // by a caller whose post takes long, mostly
        parker.reset();
        length = std::min(length, kLongestNapBesideWork);
        nap(length, true);
        length *= 2;
      }
      continue;
    }
    parker.reset();
    if (!work && idle_naps == kNapsBeforeSleep) {
      sleep_until_work();
      idle_naps = 0;
      continue;
    }
    nap(work ? kGrace : length, !work);
    const bool came_back = left_.load(std::memory_order_relaxed) != left;
    if (work && (!came_back || intake_size_.load(std::memory_order_relaxed) != 0)) {
      ours = left_.load(std::memory_order_relaxed);
      continue;
    }
    idle_naps = came_back ? 0 : idle_naps + 1;
    length = came_back ? std::min(2 * length, kLongestNap) : kNap;
  }
}

void Engine::drive_in_background(const Op& op) {
  if (!op.posted()) {
    return;
  }
  if (op.starts_slowly()) {
    rouse_background();
  } else {
    call_background();
  }
}

// From a nap, too.
void Engine::rouse_background() {
  if (!background_has_work()) {
    return;
  }
  roused_.store(true);
  const std::lock_guard<std::mutex> lock(background_mutex_);
  background_wake_.notify_one();
}

void Engine::call_background() {
  if (!background_has_work()) {
    return;
  }
  if (!wanted_.exchange(true)) {
    const std::lock_guard<std::mutex> lock(background_mutex_);
    background_wake_.notify_one();
  }
}

// Returns early to stop, when somebody wants what is in flight, and, if it can be, when roused.
void Engine::nap(Clock::duration duration, bool can_be_roused) {
  std::unique_lock<std::mutex> lock(background_mutex_);
  background_wake_.wait_for(lock, duration, [&] {
    return stopping_.load(std::memory_order_seq_cst) || wanted_.load() || (can_be_roused && roused_.load());
  });
  roused_.store(false);  // it is up, and looks for work before it naps for long
}

// Who wants it rings only if nobody did so before: called in vain, it forgets that before it looks for work a last time.
void Engine::sleep_until_work() {
  const auto called = [this] { return stopping_.load(std::memory_order_seq_cst) || background_has_work(); };
  std::unique_lock<std::mutex> lock(background_mutex_);
  background_asleep_.store(true, std::memory_order_seq_cst);
  background_wake_.wait(lock, [&] {
    if (called()) {
      return true;
    }
    wanted_.store(false);
    return called();
  });
  roused_.store(false);
  background_asleep_.store(false, std::memory_order_seq_cst);
}

}  // namespace torch_ucc
