// What the engine does with operations that do not end well: suspects, deadlines, lost members, and
// the failure of one group or of all groups.
#include <algorithm>
#include <optional>
#include <utility>

#include "progress/engine.h"

namespace torch_ucc {

void Engine::suspect(LoopToken& token, std::shared_ptr<Op> op, Status status, bool ended_well) {
  baton_.assert_held();
  if (suspects_.concerns(status)) {
    suspects_.add({std::move(op), std::move(status), ended_well, Clock::now()});
  } else {
    Status failure = failure_of(token, op, status);
    ended_.push_back({std::move(op), std::move(failure)});
  }
}

void Engine::judge(LoopToken& token) {
  baton_.assert_held();
  if (suspects_.empty()) {
    return;
  }
  const Clock::time_point now = Clock::now();
  const Clock::time_point last_death = death_seen();
  if (const auto unexplained = suspects_.take_unexplained(now, last_death)) {
    fail(*unexplained);
  }
  suspects_.settle([&](Suspects::Suspect& each) {
    baton_.assert_held();
    FailureDomain& domain = each.op->domain();
    if (!domain.failed() && domain.has_lost()) {
      fail(domain, domain.losses().front().reason);
    }
    switch (suspects_.verdict(can_believe(each.ended_well), each.since, failure_for(*each.op) != nullptr, now, last_death)) {
      case Suspects::Verdict::waits:
        return false;
      case Suspects::Verdict::group_failed: {
        Status failure = given_up(*each.op);
        ended_.push_back({each.op, std::move(failure)});
        abandon(token, std::move(each.op));
        return true;
      }
      case Suspects::Verdict::believed:
        if (!each.op->is_drained(token)) {
          abandoned_.push_back(each.op);
          keeps_ended_.store(true, std::memory_order_relaxed);
        }
        ended_.push_back({std::move(each.op), std::nullopt});
        return true;
      case Suspects::Verdict::failed:
        break;
    }
    Status failure = failure_of(token, each.op, each.status);
    ended_.push_back({std::move(each.op), std::move(failure)});
    return true;
  });
}

bool Engine::believes(LoopToken& token, FailureDomain& domain, const Status& doubt, Clock::time_point since) {
  token.check();
  baton_.assert_held();
  if (!domain.failed() && domain.has_lost()) {
    fail(domain, domain.losses().front().reason);
  }
  const bool group_failed = failure_for(domain) != nullptr;
  switch (suspects_.verdict(can_believe(true), since, group_failed, Clock::now(), death_seen())) {
    case Suspects::Verdict::believed:
      return true;
    case Suspects::Verdict::failed:
      fail(domain, doubt);
      return false;
    case Suspects::Verdict::waits:
    case Suspects::Verdict::group_failed:
      break;
  }
  return false;
}

void Engine::keep_for_transport(LoopToken& token, std::shared_ptr<void> memory) {
  token.check();
  baton_.assert_held();
  kept_for_transport_.push_back(std::move(memory));
  keeps_ended_.store(true, std::memory_order_relaxed);
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

// Fails each domain with an operation that needs something of a lost member which will not arrive.
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
      if ((need == Op::Need::direct && op->quiet().lasts(now, quiet_)) ||
          (need == Op::Need::relayed && domain.quiet().lasts(now, quiet_))) {
        fail(domain, loss.reason);
      }
    }
  }
  abandon_failed(token);
}

// Fails the whole group of an operation whose deadline has passed, and returns the error. UCC
// cannot cancel the operation, and what it leaves behind could be matched by a later operation of
// the group.
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

// Returns the error for an operation whose engine or domain has failed. Must not be called
// otherwise.
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
  abandon_all_of(token, [&](const Op& op) { return failure_for(op) != nullptr; });
}

// Gives up the operations in flight for which `has_failed` is true.
void Engine::abandon_all_of(LoopToken& token, const std::function<bool(const Op&)>& has_failed) {
  token.check();
  baton_.assert_held();
  std::erase_if(in_flight_, [&](std::shared_ptr<Op>& op) {
    baton_.assert_held();
    if (!has_failed(*op)) {
      return false;
    }
    if (failed()) {
      fail(op->domain(), failure());  // so that its listener hears of it
    }
    ended_.push_back({op, given_up(*op)});
    abandon(token, std::move(op));
    return true;
  });
}

// Revokes the lease first, so that late data stays in the buffers of the operation.
void Engine::abandon(LoopToken& token, std::shared_ptr<Op> op) {
  baton_.assert_held();
  op->take_back(Op::After::given_up);
  op->cancel(token);
  abandoned_.push_back(std::move(op));
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
  wake_up_.call();  // the background thread checks operations that no caller waits for
}

void Engine::fail(FailureDomain& domain, Status reason) {
  if (reason.code() == StatusCode::peer_gone) {
    last_death_.store(Clock::now().time_since_epoch().count(), std::memory_order_release);
  }
  if (domain.fail(std::move(reason))) {
    domain_failures_.fetch_add(1, std::memory_order_release);
    bell_.ring();
    wake_up_.call();  // the background thread ends operations that no caller waits for
  }
}

// Returns the error for an operation that ended with `reason`. If the transport failed, the whole
// group fails, because the transport may keep requests that cannot be cancelled. The group also
// fails if its ranks called different operations, because they would never agree again.
Status Engine::failure_of(LoopToken& token, const std::shared_ptr<Op>& op, const Status& reason) {
  Status status(reason.code(), op->describe() + ": " + reason.message());
  if (fails_group(status.code())) {
    fail(op->domain(), status);
    abandon(token, op);
  }
  return status;
}

}  // namespace torch_ucc
