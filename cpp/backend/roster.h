// The members of a context, their last calls, and which of them are gone.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/thread_annotations.h"
#include "bootstrap/kv_store.h"
#include "bootstrap/peer_record.h"
#include "liveness/line_plan.h"
#include "liveness/notice.h"
#include "liveness/peer_watch.h"
#include "progress/bell.h"
#include "progress/loss.h"
#include "shm/arena.h"
#include "ucc/team.h"

namespace torch_ucc {

// A member is identified by its position in the context. Any thread may call, except for
// lost_with().
class Roster {
 public:
  // `peers` are the records of the members, by position. `self` is the position of this process.
  Roster(std::vector<std::int64_t> global_ranks, int self, std::vector<PeerRecord> peers);

  std::size_t size() const { return peers_.size(); }
  std::uint64_t self() const { return self_; }
  const PeerRecord& record(std::uint64_t position) const { return peers_[position]; }
  const LinePlan& plan() const { return plan_; }
  std::vector<std::uint64_t> everybody() const;
  std::int64_t global_rank(std::uint64_t position) const { return global_ranks_[position]; }
  // The number of members that share the cores of this process, including itself.
  int ranks_on_cores() const { return torch_ucc::ranks_on_cores(peers_, static_cast<int>(self_)); }

  // Whether some member needs UCX for its messages, so that all use it.
  bool needs_ucx_for_messages() const;

  // Whether all of these ranks are members, and the positions of such ranks.
  bool covers(const std::vector<std::int64_t>& global_ranks) const;
  std::vector<std::uint64_t> positions(const std::vector<std::int64_t>& global_ranks) const;

  // The name of a member in errors.
  std::string describe(std::uint64_t position) const;

  // The bell of a member. Null for this process, and for a process that cannot be seen from here or
  // had ended when the roster was made.
  const Bell* bell_of(std::uint64_t position) const;
  Bells bells_of(const std::vector<std::uint64_t>& positions) const;

  // The other members on this host and in this pid namespace.
  std::vector<shm::Arena::Neighbour> arenas() const;

  // The processes of those members. The roster must outlive the result.
  std::vector<PeerWatch::Process> neighbours() const;

  // Returns the members that are lost after this notice: the peer, or all members on the hosts that
  // are silent. Called by the watch thread only.
  std::vector<std::uint64_t> lost_with(const Notice& notice);
  // Marks a member as gone. Returns false if it was marked before. why_gone() says why.
  bool mark_gone(std::uint64_t position, Ending how);
  std::string why_gone(std::uint64_t position) const;  // empty if it is not
  // Throws StatusError if one of these members is gone, since the group cannot be made then.
  void throw_if_gone(const std::string& group, const std::vector<std::uint64_t>& positions) const;
  // Returns a GiveUp, for a wait over the store, that calls throw_if_gone(). The roster must
  // outlive it.
  GiveUp unless_gone(const std::string& group, std::vector<std::uint64_t> positions) const;

  // The loss of the member `rank` of the group `id`. The member must be marked as gone.
  Loss loss_in(std::uint16_t id, const std::vector<std::uint64_t>& positions, int rank) const;

  // A text for errors: what the members of the group `id` called last, as far as it can be seen
  // from here and is not the call `mine` of this process.
  std::string observe(const Bell::Activity& mine, std::uint16_t id, const std::vector<std::uint64_t>& positions) const;

 private:
  const std::vector<std::int64_t> global_ranks_;
  const std::uint64_t self_;
  std::vector<PeerRecord> peers_;
  const std::map<std::uint64_t, Bell> bells_;  // of the other processes on this host
  const LinePlan plan_;

  std::set<std::size_t> silent_;  // hosts of plan_; used by the watch thread only

  // The watch thread marks members as gone, callers ask
  mutable Mutex mutex_;
  std::map<std::uint64_t, Status> gone_ TUCC_GUARDED_BY(mutex_);  // why
};

}  // namespace torch_ucc
