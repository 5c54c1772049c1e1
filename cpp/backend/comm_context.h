// What the groups of a process share: one UCC context over a set of processes, the engine that
// drives it, and the ids of its teams.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/place.h"
#include "backend/roster.h"
#include "backend/transports.h"
#include "base/settings.h"
#include "base/thread_annotations.h"
#include "bootstrap/fresh_prefix.h"
#include "device/direct.h"
#include "liveness/peer_watch.h"
#include "progress/bell.h"
#include "progress/engine.h"
#include "progress/failure_domain.h"
#include "ucc/context.h"
#include "ucc/oob.h"
#include "ucc/team.h"
#include "ucx/channel.h"
#include "ucx/worker.h"
#include "work/delivery.h"

namespace torch_ucc {

// What a group has on a context: its UCC team, and its channel for messages.
struct Membership {
  std::shared_ptr<UccTeam> team;
  std::shared_ptr<Channel> channel;
};

class CommContext : public std::enable_shared_from_this<CommContext> {
 public:
  // The latest context of its world that covers the group and whose first group is still open, or a
  // new one over exactly its members: the first group, normally the whole world, makes the context,
  // and later groups are teams on it. A group with options of its own needs a context that was made
  // with the same; one without takes another only if there is none without. All members see the
  // same contexts: they are all members of that first group, and open and close it in the same
  // place of their program. Where they share one, the group's first rank decides, and who wants
  // other options than it does fails the group for all. Blocks until that rank called it too;
  // throws StatusError.
  static Place find_place(const GroupSpec& group, const Settings& settings);

  // The context of the place, which is made if there is none. Blocks until all members called it;
  // throws StatusError.
  static std::shared_ptr<CommContext> at(const Place& place, const Settings& settings);

  // Every context of the process, each within `limit` and two seconds. At exit: groups that are
  // open stay as they are, and nothing of theirs is freed.
  static void close_all(std::chrono::milliseconds limit);

  // Their numbers.
  static std::vector<std::uint64_t> open_contexts();

  // `prefix`: that of the group's place.
  CommContext(const GroupSpec& group, FreshPrefix& prefix, const Settings& settings);
  ~CommContext();
  CommContext(const CommContext&) = delete;
  CommContext& operator=(const CommContext&) = delete;

  // As the group `id` of this context; throws StatusError.
  Membership join(const GroupSpec& group, std::uint16_t id);

  // Drains what is in flight in the group or, past the limit, gives it up; the last group closes
  // the context. Returns within `limit` and two seconds. After it neither team nor channel may be
  // used.
  void leave(const std::shared_ptr<UccTeam>& team, const std::string& name, std::chrono::milliseconds limit);

  Engine& engine() { return engine_; }
  Delivery& delivery() { return delivery_; }
  const std::shared_ptr<Direct>& direct() const { return direct_; }
  const Settings& settings() const { return settings_; }
  // Prefix of keys in a store that no other context of the job uses, the same for all its
  // processes.
  const std::string& key_prefix() const { return key_prefix_; }
  const std::shared_ptr<const World>& world() const { return world_; }
  // Counts the contexts of this process.
  std::uint64_t number() const { return number_; }
  // Whether the group may be made here: all its ranks are members, and the first group is still
  // open.
  bool serves(const GroupSpec& group) const {
    return founder_open_.load() && group.world == world_ && roster_.covers(group.global_ranks);
  }

 private:
  static constexpr std::uint16_t kControlTeam = 1;
  static constexpr std::uint16_t kFirstGroup = 2;

  // A group that is open.
  struct OpenGroup {
    std::shared_ptr<FailureDomain> domain;
    std::uint16_t id;
    std::vector<std::uint64_t> positions;  // by rank of the group
  };

  std::unique_ptr<LifeLines> open_lines(const GiveUp& give_up, Deadline deadline);
  void wait_for_lines(const GiveUp& give_up, Deadline deadline);
  void on_end(const Notice& notice);
  // What the group's first rank says on all of them: `wanted`, or a context that is to be made if
  // that is null.
  Place agree_on_place(const GroupSpec& group, const std::shared_ptr<CommContext>& wanted, const NamedValues& own);
  void refuse(const GroupSpec& group, std::uint16_t id, const Status& reason);
  void on_note(const std::string& note);
  void close(Deadline deadline);
  bool agree_to_close(Deadline deadline);
  bool destroy(Deadline deadline);

  const std::uint64_t number_;
  const Settings settings_;
  const std::shared_ptr<const World> world_;
  const std::shared_ptr<KvStore> store_;
  Bell bell_;  // ours, until the engine takes it
  UcxWorker worker_;
  Roster roster_;
  const std::string key_prefix_;  // of our keys in store_
  const std::shared_ptr<Direct> direct_;

  Oob oob_;
  UccContext ucc_;
  Transports transports_;
  Engine engine_;  // after those, which it drives
  Delivery delivery_;
  const std::shared_ptr<FailureDomain> control_domain_;
  std::shared_ptr<UccTeam> control_team_;  // all members; for what they have to agree on

  std::atomic<bool> founder_open_{false};  // the group that made the context

  Mutex creation_mutex_;  // UCC creates one team at a time, and groups may be created from several threads
  Mutex mutex_;           // as may groups be closed; never held while waiting
  int open_teams_ TUCC_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> times_created_ TUCC_GUARDED_BY(mutex_);  // by name of the group
  std::map<const FailureDomain*, OpenGroup> open_groups_ TUCC_GUARDED_BY(mutex_);
  std::map<std::uint16_t, Status> refused_ TUCC_GUARDED_BY(mutex_);  // by a member that is told to be in this group
  bool closed_ TUCC_GUARDED_BY(mutex_) = false;

  std::optional<PeerWatch> watch_;  // calls on_end(); until the context closes
};

}  // namespace torch_ucc
