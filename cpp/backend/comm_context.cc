#include "backend/comm_context.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <future>
#include <iterator>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/build_id.h"
#include "base/forked.h"
#include "base/process_state.h"
#include "base/scarcity.h"
#include "ops/operations.h"
#include "ucc/coll_args.h"
#include "ucc/collective.h"
#include "ucc/library.h"
#include "ucc/memory.h"
#include "ucx/messages.h"

namespace torch_ucc {
namespace {

Status closed_status() { return {StatusCode::closed, "its process group was closed"}; }

// How long a closing step may take beyond the caller's limit where no peer is involved: the baton to be had, the library's own
// clean-up, callbacks that end.
constexpr std::chrono::milliseconds kForOurselves{500};

// How long the end of a peer, of which the transport knows already, may take to be told: by process descriptor or life line
// that is milliseconds, on a machine where each core is wanted by many more.
constexpr milliseconds kVerdict{2000};

// How long nothing may arrive for the operations of a group that has lost a member, before they
// fail.
constexpr milliseconds kQuiet{500};

constexpr std::uint16_t kControlTeam = 1;
constexpr std::uint16_t kFirstGroup = 2;

// Contexts that are open, oldest first, and those that could not be closed: UCC may still touch what those own.
struct Registry {
  Mutex mutex;  // groups may be created and closed from several threads
  std::vector<std::shared_ptr<CommContext>> open TUCC_GUARDED_BY(mutex);
  std::vector<std::shared_ptr<CommContext>> left_behind TUCC_GUARDED_BY(mutex);
};

Registry& registry() {
  static auto* instance = new Registry();  // never destroyed: engine threads may outlive static destruction
  return *instance;
}

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1) + 1;
}

// The store is the group's own, but for one that is apart: that has the store of the group which it
// is part of. The names of a default group differ where an earlier one failed on some of its ranks.
std::shared_ptr<FreshPrefix> fresh_prefix(const GroupSpec& group) {
  return std::make_shared<FreshPrefix>(group.apart ? group.name : "", group.rank, static_cast<int>(group.global_ranks.size()));
}

std::vector<PeerRecord> exchange_records(const GroupSpec& group, const Settings& settings, FreshPrefix& prefix, const Bell& bell,
                                         const UcxWorker& worker) {
  NamedValues agreed = settings.agreed;
  const NamedValues own = settings.own();
  agreed.insert(agreed.end(), own.begin(), own.end());
  agreed.emplace_back("UCC library", ucc_library_version());
  agreed.emplace_back("torch_ucc build", build_id());
  PeerRecord mine = PeerRecord::here(std::move(agreed));
  mine.bell = bell.address();
  mine.address = worker.address();
  std::vector<PeerRecord> peers;
  for (const std::string& text : prefix.exchange(*group.store, "peer", mine.encode(), Deadline::after(group.timeout))) {
    peers.push_back(PeerRecord::decode(text));
  }
  check_peers(group.name, peers);
  return peers;
}

std::map<std::uint64_t, Bell> find_bells(const std::vector<PeerRecord>& peers, int my_rank) {
  const auto me = static_cast<std::size_t>(my_rank);
  std::map<std::uint64_t, Bell> bells;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (i != me && peers[i].host_id == peers[me].host_id) {
      if (auto bell = Bell::of_peer(peers[i].bell)) {
        bells.emplace(i, *std::move(bell));
      }
    }
  }
  return bells;
}

std::vector<std::string> neighbourhoods(const std::vector<PeerRecord>& peers) {
  std::vector<std::string> names;
  names.reserve(peers.size());
  for (const PeerRecord& peer : peers) {
    names.push_back(peer.neighbourhood());
  }
  return names;
}

Ending ending_of(Bell::Presence presence) {
  switch (presence) {
    case Bell::Presence::left:
      return Ending::left;
    case Bell::Presence::leaving:
      return Ending::exited;
    case Bell::Presence::here:
      return Ending::died;
  }
  return Ending::died;
}

const char* what_happened(Ending how) {
  switch (how) {
    case Ending::left:
    case Ending::exited:
      return " has left while the group was open";
    case Ending::died:
      return " has died";
    case Ending::reset:
      return " was lost: its connection was reset, so it died or was cut off before";
    case Ending::unreachable:
      return " cannot be reached: nothing was heard from its host for 4 s, which has failed or lost its network";
  }
  return " was lost";
}

// The libraries say that they failed, and seldom what there was too little of.
template <typename Make>
auto explaining_scarcity(const std::string& what, Make&& make) -> decltype(make()) {
  try {
    return make();
  } catch (const StatusError& error) {
    if (error.status().code() == StatusCode::transport) {
      if (const std::string scarce = scarcity(); !scarce.empty()) {
        throw StatusError(Status(StatusCode::transport, error.status().message() + "." + scarce));
      }
    }
    throw;
  } catch (const std::system_error& error) {
    throw StatusError(Status(StatusCode::transport, what + error.what() + "." + scarcity()));
  } catch (const std::bad_alloc&) {
    throw StatusError(Status(StatusCode::transport, what + "out of memory." + scarcity()));
  }
}

ParkPolicy park_policy(const Settings& settings, int ranks) {
  ParkPolicy policy;
  policy.spin = settings.spin;
  policy.yield = settings.yield;
  policy.pause_min = settings.pause_min;
  policy.pause_max = settings.pause_max;
  return fit_to_cores(policy, ranks, settings.cores);
}

// `text` to each member of a channel of notes.
class Notes final : public Messages {
 public:
  Notes(std::shared_ptr<Channel> channel, const std::vector<Message>& messages, std::shared_ptr<const std::string> text)
      : Messages(std::move(channel), Space::collective, 0, messages), text_(std::move(text)) {}
  std::string describe() const override { return "telling the members of a group that it cannot be"; }

 private:
  const std::shared_ptr<const std::string> text_;  // until the messages have left
};

// The least of what the members say, for each of them, where theirs was.
class Vote final : public Collective {
 public:
  Vote(std::shared_ptr<UccTeam> team, std::shared_ptr<std::int32_t> voice)
      : Collective(std::move(team), allreduce_in_place_args(voice.get(), 1, UCC_DT_INT32, UCC_OP_MIN, UCC_MEMORY_TYPE_HOST), {}),
        voice_(std::move(voice)) {}
  std::string describe() const override { return "agreeing on collectives in the memory of devices"; }

 private:
  const std::shared_ptr<std::int32_t> voice_;  // until the network is done with it
};

// All members have come to the end of their work.
class CloseBarrier final : public Collective {
 public:
  explicit CloseBarrier(std::shared_ptr<UccTeam> team) : Collective(std::move(team), barrier_args(), {}) {}
  std::string describe() const override { return "waiting for the other ranks to close"; }
};

}  // namespace

std::shared_ptr<CommContext> CommContext::open_for(const GroupSpec& group, const NamedValues& own) {
  Registry& contexts = registry();
  const MutexLock lock(contexts.mutex);
  std::shared_ptr<CommContext> alike;
  std::shared_ptr<CommContext> other;
  for (const std::shared_ptr<CommContext>& context : contexts.open) {
    if (context->serves(group)) {
      (context->settings_.own() == own ? alike : other) = context;  // the latest stays
    }
  }
  return alike != nullptr || !own.empty() ? alike : other;
}

Place CommContext::find_place(const GroupSpec& group, const Settings& settings) {
  mark_forked_children();
  if (in_forked_child()) {
    throw StatusError(
        Status(StatusCode::closed, "group '" + group.name +
                                       "' cannot be created: this process was forked from one that used ucc, and UCX does "
                                       "not survive that. Start processes with the spawn or forkserver method."));
  }
  const std::shared_ptr<CommContext> common = group.apart ? nullptr : open_for(group, {});
  if (common == nullptr) {
    return {group, nullptr, kFirstGroup, fresh_prefix(group)};
  }
  const NamedValues own = settings.own();
  const std::shared_ptr<CommContext> wanted = own.empty() ? common : open_for(group, own);
  if (wanted != nullptr && wanted->engine_.failed()) {
    throw StatusError(Status(StatusCode::closed, "group '" + group.name + "' cannot be created on a context that has failed (" +
                                                     wanted->engine_.failure().message() +
                                                     "). Call destroy_process_group() and initialise again."));
  }
  Place place = common->agree_on_place(group, wanted, own);
  if (place.context == nullptr) {
    place.prefix = fresh_prefix(group);
  }
  return place;
}

std::shared_ptr<CommContext> CommContext::at(const Place& place, const Settings& settings) {
  if (place.context != nullptr) {
    return place.context;
  }
  const std::string what = "group '" + place.group.name + "' cannot be created: ";
  auto context = explaining_scarcity(what, [&] {
    if (!has_descriptors_to_start()) {
      throw StatusError(Status(StatusCode::transport, what + "UCX and UCC would lack file descriptors"));
    }
    return std::make_shared<CommContext>(place.group, *place.prefix, settings);
  });
  Registry& contexts = registry();
  const MutexLock lock(contexts.mutex);
  contexts.open.push_back(context);
  return context;
}

CommContext::CommContext(const GroupSpec& group, FreshPrefix& prefix, const Settings& settings)
    : number_(next_number()),
      settings_(settings),
      world_(group.world),
      store_(group.store),
      global_ranks_(group.global_ranks),
      rank_(group.rank),
      worker_(settings_.ucx),
      peers_(exchange_records(group, settings_, prefix, bell_, worker_)),
      key_prefix_(prefix.text()),
      bells_(find_bells(peers_, rank_)),
      plan_(neighbourhoods(peers_)),
      direct_(std::make_shared<Direct>()),
      oob_(*store_, key_prefix_, rank_, static_cast<int>(global_ranks_.size())),
      transports_(ucc_, worker_, *direct_, [this](const std::string& note) { on_note(note); }),
      engine_(transports_, park_policy(settings_, ranks_on_cores(peers_, rank_)), std::move(bell_),
              {.verdict = kVerdict, .quiet = kQuiet}),
      control_domain_(std::make_shared<FailureDomain>("control")) {
  const Deadline deadline = Deadline::after(group.timeout);
  find_direct_messages();
  std::vector<std::string> addresses;
  for (PeerRecord& peer : peers_) {
    addresses.push_back(std::move(peer.address));
  }
  worker_.set_peers(std::move(addresses));
  std::vector<std::uint64_t> everybody(global_ranks_.size());
  for (std::size_t i = 0; i < everybody.size(); ++i) {
    everybody[i] = i;
  }
  Bells bells = bells_of(everybody);
  {
    const MutexLock lock(mutex_);
    members_.emplace(control_domain_.get(), Member{control_domain_, kControlTeam, everybody});
  }
  const GiveUp give_up = unless_gone(group.name, everybody);
  watch_.emplace(processes(), open_lines(give_up, deadline), [this](const Notice& notice) { return on_end(notice); });
  wait_for_lines(give_up, deadline);
  oob_.set_deadline(deadline);
  oob_.set_give_up(give_up);
  // UCC looks at the current device as it starts.
  const std::optional<c10::Device> device = settings_.native.empty() ? std::nullopt : Direct::use_current_device();
  engine_.with_baton(deadline, [&](LoopToken& token) { ucc_.create(token, oob_, settings_.ucc, settings_.ucx); });
  control_team_ = std::make_shared<UccTeam>(kControlTeam, std::move(everybody), rank_, std::move(bells), control_domain_);
  const auto create = std::make_shared<CreateTeam>(control_team_, ucc_, "control");
  create->set_deadline(deadline);
  throw_if_error(engine_.run(create));
  if (!settings_.native.empty()) {
    agree_on_native_collectives(device, deadline);
  }
}

CommContext::~CommContext() = default;

void CommContext::find_direct_messages() {
  if (settings_.direct.empty()) {
    return;
  }
  MemoryTypes<ucs_memory_type_t>::Entries found;
  for (const auto& [device, name] : settings_.direct) {
    found[device] = {worker_.memory_type(name), "this UCX takes no memory of the type '" + name +
                                                    "': its module for that is missing or found no device, or UCX_TLS leaves it "
                                                    "out"};
  }
  direct_->messages.set(std::move(found));
}

// How the members of a group go about a collective must be the same on all of them.
void CommContext::agree_on_native_collectives(std::optional<c10::Device> device, Deadline deadline) {
  MemoryTypes<ucc_memory_type_t>::Entries found;
  for (const auto& [kind, name] : settings_.native) {
    found[kind].why_not = "torch knew of no such device when the first group was made";
    if (device && kind == c10::DeviceTypeName(device->type(), /*lower_case=*/true)) {
      found[kind] = native_memory(name, deadline);
    }
  }
  const bool mine = std::any_of(found.begin(), found.end(), [](const auto& each) { return each.second.type.has_value(); });
  const auto all = std::make_shared<std::int32_t>(mine);
  const auto vote = std::make_shared<Vote>(control_team_, all);
  vote->set_deadline(deadline);
  throw_if_error(engine_.run(vote));
  for (auto& [kind, entry] : found) {
    if (entry.type && *all == 0) {
      entry = {std::nullopt, "UCC on another rank does not compute in memory of such a device"};
    }
  }
  direct_->collectives.set(std::move(found));
  direct_->device_of_collectives = device;
}

// Both have to take it: UCC's own kernels work there, and what UCX moves it moves from there and to there.
MemoryTypes<ucc_memory_type_t>::Entry CommContext::native_memory(const std::string& name, Deadline deadline) {
  const std::optional<ucc_memory_type_t> type = memory_type(name);
  if (!type) {
    return {std::nullopt, "UCC knows no memory of the type '" + name + "'"};
  }
  const auto alone = std::make_shared<UccTeam>(UccTeam::kMaxId, std::vector<std::uint64_t>{static_cast<std::uint64_t>(rank_)}, 0,
                                               Bells{}, std::make_shared<FailureDomain>("alone"));
  const auto create = std::make_shared<CreateTeam>(alone, ucc_, "alone");
  create->set_deadline(deadline);
  if (const Status created = engine_.run(create); !created.ok()) {  // the others wait for the vote
    return {std::nullopt, "UCC has no team of this rank alone, by which to ask it: " + created.message()};
  }
  bool does = false;
  engine_.with_baton(deadline, [&](LoopToken& token) {
    does = computes_in(token, *alone, *type);
    alone->destroy(token);
  });
  if (!does) {
    return {std::nullopt,
            "this UCC does not compute in memory of the type '" + name + "': it was built without that, or found no device"};
  }
  if (!worker_.memory_type(name)) {
    return {std::nullopt, "this UCX takes no memory of the type '" + name + "'"};
  }
  return {type};
}

// Those of our host and pid namespace. Who has died already has no bell that could be found.
std::vector<PeerWatch::Process> CommContext::processes() const {
  std::vector<PeerWatch::Process> found;
  const auto self = static_cast<std::uint64_t>(rank_);
  for (std::uint64_t position = 0; position < peers_.size(); ++position) {
    if (position != self && plan_.host_of(position) == plan_.host_of(self)) {
      const Bell* const bell = bell_of(position);  // lives longer than the watch
      found.push_back({position, static_cast<int>(peers_[position].pid),
                       [bell] { return bell == nullptr ? Ending::died : ending_of(bell->presence()); }});
    }
  }
  return found;
}

// One key a rank, and the keys of the few that it connects to.
std::unique_ptr<LifeLines> CommContext::open_lines(const GiveUp& give_up, Deadline deadline) {
  const auto self = static_cast<std::uint64_t>(rank_);
  if (plan_.hosts() < 2 || !settings_.life_lines) {
    return nullptr;
  }
  const auto key = [&](std::uint64_t position) { return key_prefix_ + "/line/" + std::to_string(position); };
  auto lines = std::make_unique<LifeLines>(self, peers_.size(), plan_.count_to(self));
  store_->set(key(self), lines->address());
  for (const std::uint64_t peer : plan_.from(self)) {
    const std::string text = get_by(*store_, key(peer), deadline, describe(peer) + " to listen for other hosts", give_up);
    const std::optional<LineAddress> address = LineAddress::decode(text);
    if (!address) {
      throw StatusError(Status(StatusCode::transport, describe(peer) + " published an address that cannot be read: versions of "
                                                                       "torch_ucc differ?"));
    }
    lines->connect(peer, *address);
  }
  return lines;
}

// A rank that could not be connected to is no reason to give up, as long as UCX finds a way.
void CommContext::wait_for_lines(const GiveUp& give_up, Deadline deadline) {
  while (watch_->unsettled() != 0 && !deadline.passed()) {
    give_up();
    std::this_thread::sleep_for(microseconds(500));
  }
  std::string names;
  for (const std::uint64_t peer : watch_->without_line()) {
    names += (names.empty() ? "" : ", ") + describe(peer);
  }
  if (!names.empty()) {
    TORCH_WARN("ucc: ", describe(static_cast<std::uint64_t>(rank_)), " cannot open a TCP connection to ", names,
               ". Should one of them die, that may be noticed only when an operation times out. Let the hosts connect to each "
               "other on any port, or set TORCH_UCC_LIFE_LINES=0 on all ranks to do without.");
  }
}

void CommContext::throw_if_gone(const std::string& group, const std::vector<std::uint64_t>& members) const {
  for (const std::uint64_t member : members) {
    if (const auto it = gone_.find(member); it != gone_.end()) {
      throw StatusError(Status(StatusCode::peer_gone, "group '" + group + "' cannot be created: " + it->second.message()));
    }
  }
}

// What ends a wait over the store for these.
GiveUp CommContext::unless_gone(const std::string& group, std::vector<std::uint64_t> members) {
  return [this, group, members = std::move(members)] {
    const MutexLock lock(mutex_);
    throw_if_gone(group, members);
  };
}

std::string CommContext::describe(std::uint64_t position) const {
  const PeerRecord& peer = peers_[position];
  return "rank " + std::to_string(global_ranks_[position]) + " (host " + peer.host + ", pid " + std::to_string(peer.pid) + ")";
}

// Who cannot be counted on any more. A host that is silent takes all its ranks with it; when every host that this one has lines
// to is silent, it is this one that was cut off, and all others are out of its reach.
std::vector<std::uint64_t> CommContext::lost_with(const Notice& notice) {
  if (notice.how != Ending::unreachable || notice.peer == static_cast<std::uint64_t>(rank_)) {
    return {notice.peer};
  }
  const std::size_t here = plan_.host_of(static_cast<std::uint64_t>(rank_));
  silent_.insert(plan_.host_of(notice.peer));
  const std::set<std::size_t> near = plan_.neighbours(here);
  const bool cut_off = std::includes(silent_.begin(), silent_.end(), near.begin(), near.end());
  std::vector<std::uint64_t> lost;
  for (std::uint64_t position = 0; position < peers_.size(); ++position) {
    const std::size_t where = plan_.host_of(position);
    if (where != here && (cut_off || silent_.count(where) != 0)) {
      lost.push_back(position);
    }
  }
  return lost;
}

// In the watching thread.
void CommContext::on_end(const Notice& notice) {
  std::vector<std::pair<std::shared_ptr<FailureDomain>, Loss>> losses;
  {
    const std::vector<std::uint64_t> lost = lost_with(notice);
    const MutexLock lock(mutex_);
    for (const std::uint64_t position : lost) {
      if (!gone_.try_emplace(position, StatusCode::peer_gone, describe(position) + what_happened(notice.how)).second) {
        continue;
      }
      for (const auto& [domain, member] : members_) {
        const auto at = std::find(member.positions.begin(), member.positions.end(), position);
        if (at != member.positions.end()) {
          losses.emplace_back(member.domain, loss_in(member, static_cast<int>(at - member.positions.begin())));
        }
      }
    }
  }
  for (auto& [domain, loss] : losses) {
    engine_.lose(*domain, std::move(loss));
  }
}

// Of a member that is gone. Its page, if it is on this host, says what it called last, of whatever
// group.
Loss CommContext::loss_in(const Member& member, int rank) const {
  const std::uint64_t position = member.positions[static_cast<std::size_t>(rank)];
  Loss loss{rank, gone_.at(position)};
  if (const Bell* const bell = bell_of(position)) {
    const Bell::Activity last = bell->activity();
    const Operation* const op = operation::at(last.operation);
    if (last.group == 0) {
      loss.last_called = 0;
    } else if (last.group == member.id && op != nullptr && !operation::is_message(*op)) {
      loss.last_called = last.seq;
    }
  }
  return loss;
}

// What those members that can be seen from here were doing last, where it is not what we do.
std::string CommContext::observe(std::uint16_t group, const std::vector<std::uint64_t>& members) const {
  constexpr std::size_t kNamed = 8;
  const Bell::Activity mine = engine_.bell().activity();
  std::vector<std::string> others;
  std::size_t elsewhere = 0;
  for (const std::uint64_t member : members) {
    if (static_cast<int>(member) == rank_) {
      continue;
    }
    const Bell* const bell = bell_of(member);
    if (bell == nullptr) {
      ++elsewhere;
      continue;
    }
    const Bell::Activity its = bell->activity();
    if (its.group == mine.group && its.operation == mine.operation && its.seq == mine.seq) {
      continue;
    }
    const std::string text = describe(member) + (process_state(peers_[member].pid) == 'T' ? " is stopped," : "");
    if (its.group == 0) {
      others.push_back(text + " has called nothing yet");
      continue;
    }
    const auto ago = std::chrono::duration_cast<milliseconds>(Clock::now() - its.since);
    const Operation* const op = operation::at(its.operation);
    others.push_back(text + " last called " + (op == nullptr ? "what is no operation" : op->name) + " seq " +
                     std::to_string(its.seq) + (its.group == group ? "" : " of another group") + " " +
                     std::to_string(ago.count()) + " ms ago");
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(kNamed, others.size()); ++i) {
    text += (i == 0 ? "" : "; ") + others[i];
  }
  if (others.size() > kNamed) {
    text += "; and " + std::to_string(others.size() - kNamed) + " more";
  }
  if (elsewhere != 0) {
    text += (text.empty() ? "" : "; ") + std::to_string(elsewhere) + " rank(s) of other hosts cannot be seen from here";
  }
  return text.empty() ? "Every other rank is in the same call." : "Not in the same call: " + text + ".";
}

bool CommContext::serves(const GroupSpec& group) const {
  return founder_open_.load() && group.world == world_ &&
         std::all_of(group.global_ranks.begin(), group.global_ranks.end(), [this](std::int64_t rank) {
           return std::find(global_ranks_.begin(), global_ranks_.end(), rank) != global_ranks_.end();
         });
}

std::vector<std::uint64_t> CommContext::positions(const std::vector<std::int64_t>& global_ranks) const {
  std::vector<std::uint64_t> found;
  found.reserve(global_ranks.size());
  for (const std::int64_t rank : global_ranks) {
    found.push_back(
        static_cast<std::uint64_t>(std::find(global_ranks_.begin(), global_ranks_.end(), rank) - global_ranks_.begin()));
  }
  return found;
}

const Bell* CommContext::bell_of(std::uint64_t member) const {
  const auto it = bells_.find(member);
  return it == bells_.end() ? nullptr : &it->second;
}

Bells CommContext::bells_of(const std::vector<std::uint64_t>& members) const {
  Bells bells;
  for (const std::uint64_t member : members) {
    if (const Bell* bell = bell_of(member)) {
      bells.on_host.push_back(bell);
    }
  }
  bells.complete = bells.on_host.size() + 1 == members.size();
  return bells;
}

Place CommContext::agree_on_place(const GroupSpec& group, const std::shared_ptr<CommContext>& wanted, const NamedValues& own) {
  int times = 0;
  {
    const MutexLock lock(mutex_);
    times = times_created_[group.name]++;
  }
  const std::vector<std::uint64_t> members = positions(group.global_ranks);
  const std::string key = "torch_ucc/team/" + peers_.front().nonce + "/" + group.name + "/" + std::to_string(times);
  std::int64_t id = kFirstGroup;  // on a context that is to be made
  NamedValues decided = own;
  if (group.rank == 0) {
    id += wanted == nullptr ? 0 : wanted->store_->add(wanted->key_prefix_ + "/teams", 1);
    NamedValues said{{"id", std::to_string(id)}};
    said.insert(said.end(), own.begin(), own.end());
    group.store->set(key, encode_values(said));
  } else {
    const NamedValues said =
        decode_values(get_by(*group.store, key, Deadline::after(group.timeout),
                             "rank 0 of group '" + group.name + "' to create it", unless_gone(group.name, members)));
    id = number_in(said.empty() ? "" : said.front().second, "the id of group '" + group.name + "'");
    decided.assign(said.begin() + 1, said.end());
  }
  if (id < kFirstGroup || id > UccTeam::kMaxId) {
    throw StatusError(Status(StatusCode::transport, "group '" + group.name + "' got no id: UCC can tell " +
                                                        std::to_string(UccTeam::kMaxId) + " groups of a job apart, and " +
                                                        std::to_string(id) + " were created"));
  }
  Place place{group, wanted, static_cast<std::uint16_t>(id)};
  if (decided == own) {
    return place;
  }
  if (id == kFirstGroup) {
    place.context = nullptr;  // those who make one compare their records
    return place;
  }
  PeerRecord first = peers_[members.front()];
  first.agreed = decided;
  PeerRecord mine = peers_[static_cast<std::size_t>(rank_)];
  mine.agreed = own;
  const Status reason = difference(group.name, first, 0, mine, group.rank);
  const std::shared_ptr<CommContext> context = open_for(group, decided);
  if (context != nullptr && group.store->add(key + "/refused", 1) == 1) {  // one tells the others, however many differ
    context->refuse(group, place.id, reason);
  }
  throw StatusError(reason);
}

// Fails a group on those who are in it with the rank that they count on.
void CommContext::refuse(const GroupSpec& group, std::uint16_t id, const Status& reason) {
  const auto note = std::make_shared<std::string>((std::to_string(id) + ' ' + reason.message()).substr(0, UcxWorker::kMaxNote));
  std::vector<ChannelMember> members;
  std::vector<Message> messages;
  for (const std::uint64_t position : positions(group.global_ranks)) {
    if (static_cast<int>(position) != rank_) {
      messages.push_back({Message::Kind::send, static_cast<int>(members.size()), note->data(), note->size()});
      members.push_back({position, bell_of(position)});
    }
  }
  const auto channel = std::make_shared<Channel>(worker_, TagLayout::kNotes, std::move(members), 0, control_domain_);
  engine_.post(std::make_shared<Notes>(channel, messages, note), Follow::leaves);
}

// With the baton.
void CommContext::on_note(const std::string& note) {
  std::uint16_t id = 0;
  const char* const end = note.data() + note.size();
  const auto [after, error] = std::from_chars(note.data(), end, id);
  if (error != std::errc() || after == end) {
    return;
  }
  const Status reason(StatusCode::closed, std::string(after + 1, end));
  std::shared_ptr<FailureDomain> domain;
  {
    const MutexLock lock(mutex_);
    refused_.emplace(id, reason);
    for (const auto& [key, member] : members_) {
      if (member.id == id) {
        domain = member.domain;
      }
    }
  }
  if (domain != nullptr) {
    engine_.fail(*domain, reason);
  }
}

Membership CommContext::join(const GroupSpec& group, std::uint16_t id) {
  if (group.global_ranks.size() > TagLayout::kMaxRanks) {
    throw StatusError(Status(StatusCode::unsupported,
                             "group '" + group.name + "' has more than " + std::to_string(TagLayout::kMaxRanks) + " ranks"));
  }
  std::vector<std::uint64_t> members = positions(group.global_ranks);
  std::vector<ChannelMember> channel_members;
  channel_members.reserve(members.size());
  for (const std::uint64_t member : members) {
    channel_members.push_back({member, bell_of(member)});
  }
  Bells bells = bells_of(members);
  const auto domain = std::make_shared<FailureDomain>(group.name);
  domain->set_observer([this, id, members] { return observe(id, members); });
  {
    const MutexLock lock(mutex_);
    throw_if_gone(group.name, members);
    if (const auto it = refused_.find(id); it != refused_.end()) {
      throw StatusError(it->second);
    }
    members_.emplace(domain.get(), Member{domain, id, members});
  }
  auto team = std::make_shared<UccTeam>(id, std::move(members), group.rank, std::move(bells), domain);
  auto create = std::make_shared<CreateTeam>(team, ucc_, group.name);
  create->set_deadline(Deadline::after(group.timeout));
  {
    const MutexLock lock(creation_mutex_);
    if (const Status created = engine_.run(create); !created.ok()) {
      {
        const MutexLock members_lock(mutex_);
        members_.erase(domain.get());
      }
      explaining_scarcity("", [&] { throw_if_error(created); });
    }
  }
  const MutexLock lock(mutex_);
  if (closed_) {
    throw StatusError(Status(StatusCode::closed, "group '" + group.name + "' was created while the last of its others closed"));
  }
  ++open_teams_;
  if (id == kFirstGroup) {
    founder_open_.store(true);
  }
  return {team, std::make_shared<Channel>(worker_, id, std::move(channel_members), group.rank, domain)};
}

void CommContext::leave(const std::shared_ptr<UccTeam>& team, const std::string& name, std::chrono::milliseconds limit) {
  const Deadline deadline = Deadline::after(limit);
  if (team->id() == kFirstGroup) {
    founder_open_.store(false);
  }
  if (engine_.drain(team->domain(), deadline)) {
    engine_.with_baton(Deadline::after(kForOurselves), [&](LoopToken& token) { team->destroy(token); });
  } else {
    engine_.fail(team->domain(), Status(StatusCode::closed, "group '" + name + "' was closed while it was in flight"));
  }
  {
    const MutexLock lock(mutex_);
    members_.erase(&team->domain());
    if (--open_teams_ != 0) {
      return;
    }
  }
  close(deadline);
}

std::vector<std::uint64_t> CommContext::open_contexts() {
  Registry& contexts = registry();
  const MutexLock lock(contexts.mutex);
  std::vector<std::uint64_t> numbers;
  numbers.reserve(contexts.open.size());
  for (const auto& context : contexts.open) {
    numbers.push_back(context->number());
  }
  return numbers;
}

void CommContext::close_all(std::chrono::milliseconds limit) {
  if (in_forked_child()) {
    return;
  }
  Registry& contexts = registry();
  std::vector<std::shared_ptr<CommContext>> open;
  {
    const MutexLock lock(contexts.mutex);
    open = contexts.open;
  }
  for (const auto& context : open) {
    context->close(Deadline::after(limit));
  }
}

// UCC flushes to every peer when a context is destroyed, without a bound: only sensible when all of them got here, with
// everything that they had sent to each other.
bool CommContext::agree_to_close(Deadline deadline) {
  if (engine_.left_behind()) {
    return false;
  }
  const std::shared_ptr<Op> steps[] = {std::make_shared<FlushWorker>(worker_, *control_domain_),
                                       std::make_shared<CloseBarrier>(control_team_)};
  return std::all_of(std::begin(steps), std::end(steps), [&](const std::shared_ptr<Op>& step) {
    engine_.post(step, Follow::waits);
    return engine_.wait(*step, deadline) && step->completion().status().ok();
  });
}

// In a thread that can be left behind: a peer that stops right now would hold it for ever.
bool CommContext::destroy(Deadline deadline) {
  oob_.set_deadline(deadline);
  oob_.set_closing();
  const auto destroyed = std::make_shared<std::promise<bool>>();
  std::future<bool> answer = destroyed->get_future();
  std::thread thread;
  try {
    thread = std::thread([self = shared_from_this(), destroyed, deadline] {
      destroyed->set_value(self->engine_.with_baton(deadline, [&](LoopToken& token) {
        self->engine_.fail(closed_status());  // before anything goes that an operation might still use
        self->control_team_->destroy(token);
        self->worker_.destroy(token);
        self->ucc_.destroy(token);
      }));
    });
  } catch (const std::system_error&) {
    return false;
  }
  if (answer.wait_until(deadline.at()) != std::future_status::ready) {
    thread.detach();
    return false;
  }
  thread.join();  // it must not be the last to hold the context, at whatever the process does next
  return answer.get();
}

void CommContext::close(Deadline deadline) {
  const auto self = shared_from_this();
  bool groups_are_open = false;  // at exit, without destroy_process_group(): their teams, perhaps their operations, live on
  {
    const MutexLock lock(mutex_);
    if (std::exchange(closed_, true)) {
      return;
    }
    groups_are_open = open_teams_ != 0;
  }
  Registry& contexts = registry();
  {
    const MutexLock lock(contexts.mutex);
    std::erase(contexts.open, self);
  }
  engine_.bell().set_presence(Bell::Presence::leaving);
  const bool all_here = agree_to_close(deadline);
  if (all_here) {
    engine_.bell().set_presence(Bell::Presence::left);
  }
  watch_->stop(all_here ? Ending::left : Ending::exited);
  const bool destroyed = all_here && !groups_are_open && destroy(std::max(deadline, Deadline::after(kForOurselves)));
  // From here nothing reaches UCC any more, whoever still holds a group or a Work.
  engine_.fail(closed_status());
  engine_.stop_background();
  delivery_.stop(std::max(deadline, Deadline::after(kForOurselves)));
  if (!destroyed) {
    if (!groups_are_open) {
      engine_.with_baton(deadline, [&](LoopToken& token) { worker_.destroy_if_unused(token); });
    }
    const MutexLock lock(contexts.mutex);
    contexts.left_behind.push_back(self);
  }
}

}  // namespace torch_ucc
