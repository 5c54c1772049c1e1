// Operations that the transport ended badly, or well in doubt, and when to believe it.
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

// A transport notices the end of a peer by its own connections, and the news who it was comes a
// moment later. Until then neither an error that names nobody nor a success that may be none is
// reported. Of the engine, with the baton; knows nothing of time but what it is told.
class Suspects {
 public:
  // For so long after a peer was gone the transport's errors are put down to that, where they can
  // be anybody's.
  static constexpr std::chrono::seconds kAftermath{10};
  // A success in doubt that somebody's end explains is held back no longer than this: members of
  // its own group for whom it was a success may leave meanwhile, and a second later that counts.
  static constexpr milliseconds kBelief{600};

  struct Suspect {
    std::shared_ptr<Op> op;
    Status status;
    bool ended_well;
    Clock::time_point since;
  };
  enum class Verdict : unsigned char {
    waits,         // for the news
    group_failed,  // which is the reason
    believed,      // it ended well: a process has ended, but no member of this group
    failed,        // with its own status
  };

  explicit Suspects(const LossPolicy& losses) : limit_(losses.verdict) {}

  // Whether such a status is a matter for a verdict.
  bool concerns(const Status& status) const { return status.code() == StatusCode::transport && limit_.count() != 0; }
  void add(Suspect suspect) { held_.push_back(std::move(suspect)); }

  // The transport said this itself, of no operation. False if that is for the caller to act on at
  // once.
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

  // What the transport said, if it has remained unexplained; once.
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

  Verdict verdict(const Suspect& suspect, bool group_failed, Clock::time_point now, Clock::time_point last_death) const {
    if (group_failed) {
      return Verdict::group_failed;
    }
    const bool believed = suspect.ended_well && explained(now, last_death);
    if (now - suspect.since < (believed ? std::min<Clock::duration>(limit_, kBelief) : limit_)) {
      return Verdict::waits;
    }
    return believed ? Verdict::believed : Verdict::failed;
  }

  // Those of which `decided` is true are forgotten.
  template <typename Decided>
  void settle(Decided decided) {
    std::erase_if(held_, decided);
  }

  bool has_of(const FailureDomain& domain) const {
    return std::any_of(held_.begin(), held_.end(), [&](const Suspect& each) { return &each.op->domain() == &domain; });
  }

 private:
  bool explained(Clock::time_point now, Clock::time_point last_death) const { return now - last_death < kAftermath + limit_; }

  const Clock::duration limit_;
  std::vector<Suspect> held_;
  std::optional<Status> unexplained_;
  Deadline explain_by_;
};

}  // namespace torch_ucc
