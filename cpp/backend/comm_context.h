// What the groups of a process share: one UCC context over a set of processes, the engine that drives it, and the ids of its
// teams.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/thread_annotations.h"
#include "bootstrap/kv_store.h"
#include "bootstrap/peer_record.h"
#include "progress/bell.h"
#include "progress/engine.h"
#include "ucc/context.h"
#include "ucc/oob.h"
#include "ucc/team.h"
#include "work/delivery.h"

namespace torch_ucc {

// A group that is to be created, seen from one of its members.
struct GroupSpec {
  std::shared_ptr<KvStore> store;  // of this group: its keys are not those of another group
  std::string name;
  std::vector<std::int64_t> global_ranks;  // by rank of the group
  int rank = 0;
  std::chrono::milliseconds timeout{0};
};

class CommContext : public std::enable_shared_from_this<CommContext> {
 public:
  // The oldest context that covers the group and whose first group is still open, or a new one over exactly its members: the
  // first group, normally the world, makes the context, and later groups are teams on it. All members decide alike: they are
  // all members of that first group, and open and close it in the same place of their program. Blocks until all members
  // called it; throws StatusError.
  static std::shared_ptr<CommContext> for_group(const GroupSpec& group, const Settings& settings);

  // Whether this process was forked from one that used a context: it must not use any.
  static bool in_forked_child();

  // Every context of the process, each within `limit` and two seconds. At exit: groups that are open stay as they are, and
  // nothing of theirs is freed.
  static void close_all(std::chrono::milliseconds limit);

  CommContext(const GroupSpec& group, const Settings& settings);
  ~CommContext();
  CommContext(const CommContext&) = delete;
  CommContext& operator=(const CommContext&) = delete;

  // Blocks until the first rank of the group called it too (it hands out the team's id); throws StatusError.
  std::shared_ptr<UccTeam> create_team(const GroupSpec& group);

  // Drains what is in flight on the team or, past the limit, gives it up; the last team closes the context. Returns within
  // `limit` and two seconds. After it the team must not be used.
  void close_team(const std::shared_ptr<UccTeam>& team, const std::string& name, std::chrono::milliseconds limit);

  Engine& engine() { return engine_; }
  Delivery& delivery() { return delivery_; }
  const Settings& settings() const { return settings_; }
  const std::vector<PeerRecord>& peers() const { return peers_; }

 private:
  bool serves(const std::vector<std::int64_t>& global_ranks) const;
  std::uint64_t position(std::int64_t global_rank) const;
  Bells bells_of(const std::vector<std::uint64_t>& members) const;
  std::uint16_t agree_on_id(const GroupSpec& group);
  void close(Deadline deadline);
  bool agree_to_close(Deadline deadline);
  bool destroy(Deadline deadline);

  const Settings settings_;
  const std::shared_ptr<KvStore> store_;
  const std::vector<std::int64_t> global_ranks_;  // by position in the context
  const int rank_;                                // our position
  const std::string scope_;                       // prefix of our keys in store_
  Bell bell_;                                     // ours, until the engine takes it
  const std::vector<PeerRecord> peers_;           // by position
  const std::map<std::uint64_t, Bell> bells_;     // of the other processes on this host, by position

  Oob oob_;
  UccContext ucc_;
  Engine engine_;  // after ucc_, which it drives
  Delivery delivery_;
  std::shared_ptr<UccTeam> control_team_;  // all members; only for agreeing to close

  std::atomic<bool> founder_open_{false};  // the group that made the context

  Mutex creation_mutex_;  // UCC creates one team at a time, and groups may be created from several threads
  Mutex mutex_;           // as may groups be closed; never held while waiting
  int open_teams_ TUCC_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> times_created_ TUCC_GUARDED_BY(mutex_);  // by name of the group
  bool closed_ TUCC_GUARDED_BY(mutex_) = false;
};

}  // namespace torch_ucc
