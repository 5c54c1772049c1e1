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
#include "ucc/team.h"

namespace torch_ucc {

// Members are told apart by their position in the context. Any thread, but for lost_with().
class Roster {
 public:
  // `peers` by position, each of whom gave its record; `self` is our position.
  Roster(std::vector<std::int64_t> global_ranks, int self, std::vector<PeerRecord> peers);

  std::size_t size() const { return peers_.size(); }
  std::uint64_t self() const { return self_; }
  const PeerRecord& record(std::uint64_t position) const { return peers_[position]; }
  const LinePlan& plan() const { return plan_; }
  // By position; once, since they are long and nobody else needs them.
  std::vector<std::string> take_worker_addresses();
  std::vector<std::uint64_t> everybody() const;
  // How many members share our cores, with us.
  int ranks_on_cores() const { return torch_ucc::ranks_on_cores(peers_, static_cast<int>(self_)); }

  // Whether all of them are members, and where.
  bool covers(const std::vector<std::int64_t>& global_ranks) const;
  std::vector<std::uint64_t> positions(const std::vector<std::int64_t>& global_ranks) const;

  // As errors name a member.
  std::string describe(std::uint64_t position) const;

  // Null for ourselves, and for a process that cannot be seen from here or has died.
  const Bell* bell_of(std::uint64_t position) const;
  Bells bells_of(const std::vector<std::uint64_t>& positions) const;

  // The other processes of our host and pid namespace. The roster must outlive their use.
  std::vector<PeerWatch::Process> neighbours() const;

  // Who cannot be counted on any more: the peer, or those of a host that is silent. Of the watching
  // thread.
  std::vector<std::uint64_t> lost_with(const Notice& notice);
  // False if it was gone already.
  bool mark_gone(std::uint64_t position, Ending how);
  // What ends the making of a group.
  void throw_if_gone(const std::string& group, const std::vector<std::uint64_t>& positions) const;
  // The same for a wait over the store. The roster must outlive it.
  GiveUp unless_gone(const std::string& group, std::vector<std::uint64_t> positions) const;

  // Of the member `rank` of the group `id`, which is gone.
  Loss loss_in(std::uint16_t id, const std::vector<std::uint64_t>& positions, int rank) const;

  // What those members of the group `id` that can be seen from here were doing last, where it is
  // not what we do, as `mine` says.
  std::string observe(const Bell::Activity& mine, std::uint16_t id, const std::vector<std::uint64_t>& positions) const;

 private:
  const std::vector<std::int64_t> global_ranks_;
  const std::uint64_t self_;
  std::vector<PeerRecord> peers_;
  const std::map<std::uint64_t, Bell> bells_;  // of the other processes on this host
  const LinePlan plan_;

  std::set<std::size_t> silent_;  // hosts of plan_; of the watching thread

  mutable Mutex mutex_;                                           // the watch finds who is gone, callers ask
  std::map<std::uint64_t, Status> gone_ TUCC_GUARDED_BY(mutex_);  // why
};

}  // namespace torch_ucc
