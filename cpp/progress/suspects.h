// Operations that ended with an error of the transport, or well but in doubt, and the verdict on
// them.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "progress/loss.h"
#include "progress/op.h"

namespace torch_ucc {

// A transport notices the end of a peer by its own connections. The watch thread reports a moment
// later which rank it was. Until then the engine holds back an error that names no rank, and a
// success that is in doubt. The engine uses this object with the baton, and passes the time in.
class Suspects {
 public:
  // How long after the loss of a peer errors of the transport that name no operation, and doubts
  // about a success, are explained by that loss. The time for a verdict is added.
  static constexpr std::chrono::seconds kAftermath{10};
  // How long a success in doubt is held back if the loss of a peer explains the doubt. Longer would
  // be wrong: members that saw the success may leave meanwhile, which would fail the group.
  static constexpr milliseconds kBelief{600};

  struct Suspect {
    std::shared_ptr<Op> op;
    Status status;
    bool ended_well;
    Clock::time_point since;
  };
  enum class Verdict : unsigned char {
    waits,         // the operation is still held back
    group_failed,  // the operation fails with its group
    believed,      // the operation ended well: a rank was lost, but not of this group
    failed,        // the operation fails with its own status
  };

  explicit Suspects(const LossPolicy& losses) : limit_(losses.verdict) {}

  // Whether an operation with this status must be held back.
  bool concerns(const Status& status) const { return status.code() == StatusCode::transport && limit_.count() != 0; }
  void add(Suspect suspect) { held_.push_back(std::move(suspect)); }

  // Holds back an error of the transport that names no operation. Returns false if verdicts are
  // off: then the caller must act on the error at once.
  bool hold_back(Status& status, Clock::time_point now) {
    if (limit_.count() == 0) {
      return false;
    }
    if (!unexplained_) {
      unexplained_ = std::move(status);
      explain_by_ = Deadline::after(limit_, now);
    }
    return true;
  }

  bool empty() const { return held_.empty() && !unexplained_; }

  // Returns the error that hold_back() kept, once, if its time has passed and no loss explains it.
  std::optional<Status> take_unexplained(Clock::time_point now, Clock::time_point last_death) {
    std::optional<Status> failure;
    if (unexplained_ && explain_by_.passed(now)) {
      if (!explained(now, last_death)) {
        failure = std::move(unexplained_);
      }
      unexplained_.reset();
    }
    return failure;
  }

  // `can_believe`: whether the operation ended well, and the loss of a peer can explain the doubt.
  // `since`: when the operation became a suspect.
  Verdict verdict(bool can_believe, Clock::time_point since, bool group_failed, Clock::time_point now,
                  Clock::time_point last_death) const {
    if (group_failed) {
      return Verdict::group_failed;
    }
    const bool believed = can_believe && explained(now, last_death);
    if (now - since < (believed ? std::min<Clock::duration>(limit_, kBelief) : limit_)) {
      return Verdict::waits;
    }
    return believed ? Verdict::believed : Verdict::failed;
  }

  // Forgets the suspects for which `decided` returns true.
  template <typename Decided>
  void settle(Decided decided) {
    std::erase_if(held_, decided);
  }

  bool has_of(const FailureDomain& domain) const {
    return std::any_of(held_.begin(), held_.end(), [&](const Suspect& each) { return &each.op->domain() == &domain; });
  }

 private:
  bool explained(Clock::time_point now, Clock::time_point last_death) const {
    return limit_.count() != 0 && now - last_death < kAftermath + limit_;
  }

  const Clock::duration limit_;
  std::vector<Suspect> held_;
  std::optional<Status> unexplained_;
  Deadline explain_by_;
};

}  // namespace torch_ucc
