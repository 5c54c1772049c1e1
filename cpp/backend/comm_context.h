// What the groups of a process share: memory or libraries by which a set of processes communicates,
// the engine that drives them, and the ids of the groups.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/job_facts.h"
#include "backend/place.h"
#include "backend/roster.h"
#include "backend/transports.h"
#include "base/settings.h"
#include "base/thread_annotations.h"
#include "bootstrap/fresh_prefix.h"
#include "device/direct.h"
#include "hosts/levels.h"
#include "liveness/peer_watch.h"
#include "messages/channel.h"
#include "messages/mixed_carrier.h"
#include "progress/bell.h"
#include "progress/engine.h"
#include "progress/failure_domain.h"
#include "shm/arena.h"
#include "shm/board.h"
#include "shm/mail.h"
#include "ucc/context.h"
#include "ucc/oob.h"
#include "ucc/team.h"
#include "ucx/worker.h"
#include "work/delivery.h"

namespace torch_ucc {

// What a group has on a context: its UCC team, its board in shared memory, and its channel for
// messages.
struct Membership {
  std::shared_ptr<UccTeam> team;      // of UCC, only if the group needs UCC
  std::shared_ptr<shm::Board> board;  // null if its ranks do not share memory
  std::shared_ptr<Channel> channel;
  bool messages_in_memory = false;        // whether all messages of the channel go through shared memory
  std::optional<hosts::Levels> levels{};  // only if the group is divided by host
};

class CommContext : public std::enable_shared_from_this<CommContext> {
 public:
  // Finds the context for a group: the latest context of its world that covers the group and whose
  // first group is still open, or else a new one over exactly the members of the group. The first
  // group, normally the whole world, makes the context, and later groups are teams on it. A group
  // with options of its own needs a context that was made with the same options. A group without
  // options of its own takes a context that has some only if there is no other.
  //
  // All members see the same contexts, because they are all members of that first group, and open
  // and close it in the same place of their program. If they share a context, rank 0 of the group
  // decides for all members, and the others block until rank 0 has called find_place(), too. A
  // member that wants other options than rank 0 makes the group fail on all members. Throws
  // StatusError.
  static Place find_place(const GroupSpec& group, const Settings& settings);

  // Returns the context of the place. Makes it if there is none, which blocks until all members
  // have called at(). Throws StatusError.
  static std::shared_ptr<CommContext> at(const Place& place, const Settings& settings);

  // Closes every context of the process, each within `limit` and two seconds. For use at exit: open
  // groups stay as they are, and nothing that they own is freed.
  static void close_all(std::chrono::milliseconds limit);

  // The numbers of the contexts that are open.
  static std::vector<std::uint64_t> open_contexts();

  // Called by at(). `prefix` is that of the group's place.
  CommContext(const GroupSpec& group, FreshPrefix& prefix, const Settings& settings);
  ~CommContext();
  CommContext(const CommContext&) = delete;
  CommContext& operator=(const CommContext&) = delete;

  // Creates what a group has on this context, where it gets the number `id`. If the group needs UCC,
  // blocks until the other members have come here, too. Throws StatusError.
  Membership join(const GroupSpec& group, std::uint16_t id);

  // Ends the operations in flight in the group, if there are any, here and on the other ranks. The
  // group cannot be used afterwards.
  void give_up(const Membership& group, const std::string& why);

  // Waits for the operations in flight in the group, or gives them up when `limit` has passed. The
  // last group closes the context. Returns within `limit` and two seconds. Neither team nor channel
  // may be used afterwards.
  void leave(const Membership& group, const std::string& name, std::chrono::milliseconds limit);

  Engine& engine() { return engine_; }
  Delivery& delivery() { return delivery_; }
  const std::shared_ptr<Direct>& direct() const { return direct_; }
  const Settings& settings() const { return settings_; }
  // The prefix of this context's keys in the store. It is the same in all processes of the context,
  // and no other context of the job uses it.
  const std::string& key_prefix() const { return key_prefix_; }
  const std::shared_ptr<const World>& world() const { return world_; }
  // The contexts of a process are numbered from 1, in the order in which they were made.
  std::uint64_t number() const { return number_; }
  // Why a group of this context has no board. Only valid for such a group.
  std::string why_no_board() const;
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

  // Appends to `doors` where the ranks that this one connects to give a report about their hosts.
  std::unique_ptr<LifeLines> open_lines(const GiveUp& give_up, Deadline deadline, std::vector<JobFacts::Door>& doors);
  void wait_for_lines(const GiveUp& give_up, Deadline deadline);
  void on_end(const Notice& notice);
  // Returns the place that rank 0 of the group has chosen. Rank 0 chooses `wanted`, or a new
  // context if `wanted` is null.
  Place agree_on_place(const GroupSpec& group, const std::shared_ptr<CommContext>& wanted, const NamedValues& own);
  void refuse(const GroupSpec& group, std::uint16_t id, const Status& reason);
  void on_note(const std::string& note);
  void fail(const Membership& group, const std::string& why);
  void close(Deadline deadline);
  // Blocks until the neighbours and this process know whether they can map each other.
  void meet_neighbours(const GiveUp& give_up, Deadline deadline);
  void open_mail();
  void mix_carriers();
  void create_worker(FreshPrefix& prefix, const GiveUp& give_up, Deadline deadline);
  void create_ucc(const GroupSpec& group, Deadline deadline);
  void create_team(const std::shared_ptr<UccTeam>& team, const GroupSpec& group);
  std::optional<hosts::Levels> divide(const GroupSpec& group, std::uint16_t id, const std::vector<std::uint64_t>& members,
                                      const std::shared_ptr<FailureDomain>& domain);
  // Returns what carries the messages of a group. `board` is that of the group.
  Carrier& carrier_for(const shm::Board* board) const;
  // How many numbers a group takes: where there are several hosts, its own, and the next one for its
  // row (see hosts/levels.h).
  int numbers_of_group() const { return is_one_host() ? 1 : 2; }
  // Whether all groups of this context communicate through shared memory.
  bool is_one_host() const { return control_board_ != nullptr; }
  bool agree_to_close(Deadline deadline);
  bool destroy(Deadline deadline);

  const std::uint64_t number_;
  const Settings settings_;
  const std::shared_ptr<const World> world_;
  const std::shared_ptr<KvStore> store_;
  Bell bell_;                                // the bell of this process, until the engine takes it
  const std::unique_ptr<shm::Arena> arena_;  // null if this process cannot use the host path
  std::unique_ptr<shm::Mail> mail_;          // null if the processes of this host do not share memory
  std::unique_ptr<UcxWorker> worker_;        // null if no message needs UCX; then UCC is not used either
  std::unique_ptr<MixedCarrier> mixed_;      // of both; null on one host, or if there is no mail
  Roster roster_;
  const std::string key_prefix_;  // of our keys in store_
  const std::shared_ptr<Direct> direct_;

  Oob oob_;
  UccContext ucc_;
  Transports transports_;
  Engine engine_;  // declared after the transports, which it drives
  Delivery delivery_;
  const std::shared_ptr<FailureDomain> control_domain_;
  std::shared_ptr<UccTeam> control_team_;      // a team of all members, for votes and for closing
  std::shared_ptr<shm::Board> control_board_;  // the same in shared memory, if all members have it
  // Whether the ranks of each host share memory
  bool all_share_memory_ = false;

  std::atomic<bool> founder_open_{false};  // whether the group that made the context is open

  // UCC creates one team at a time, and groups may be created from several threads
  Mutex creation_mutex_;
  Mutex mutex_;  // several threads may create and close groups; never held while waiting
  int open_teams_ TUCC_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> times_created_ TUCC_GUARDED_BY(mutex_);  // by name of the group
  std::map<const FailureDomain*, OpenGroup> open_groups_ TUCC_GUARDED_BY(mutex_);
  // Why a member of a group has refused it, by the number of the group.
  std::map<std::uint16_t, Status> refused_ TUCC_GUARDED_BY(mutex_);
  bool closed_ TUCC_GUARDED_BY(mutex_) = false;

  std::optional<JobFacts> facts_;   // until the context closes
  std::optional<PeerWatch> watch_;  // calls on_end(); until the context closes
};

}  // namespace torch_ucc
