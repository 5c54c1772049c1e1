#include "backend/comm_context.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "backend/context_registry.h"
#include "backend/device_memory.h"
#include "backend/vote.h"
#include "base/build_id.h"
#include "base/forked.h"
#include "base/interrupt.h"
#include "base/scarcity.h"
#include "shm/collective.h"
#include "ucc/coll_args.h"
#include "ucc/collective.h"
#include "ucc/library.h"
#include "ucx/flush_worker.h"

namespace torch_ucc {
namespace {

Status closed_status() { return {StatusCode::closed, "its process group was closed"}; }

// How long a closing step that involves no peer may take beyond the caller's limit: it waits for
// the baton, for the library's own clean-up, or for callbacks to end.
constexpr std::chrono::milliseconds kForOurselves{500};

// How long the engine waits until the watch thread names a peer that has ended. The transport may
// notice the end of the peer before. The name comes within milliseconds, or later on a machine with
// too few cores.
constexpr milliseconds kVerdict{2000};

// Once a group has lost a member, its operations fail if nothing arrives for them for this long.
constexpr milliseconds kQuiet{500};

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1) + 1;
}

std::vector<PeerRecord> exchange_records(const GroupSpec& group, const Settings& settings, FreshPrefix& prefix, const Bell& bell,
                                         const shm::Arena* arena) {
  NamedValues agreed = settings.agreed;
  const NamedValues own = settings.own();
  agreed.insert(agreed.end(), own.begin(), own.end());
  agreed.emplace_back("UCC library", ucc_library_version());
  agreed.emplace_back("torch_ucc build", build_id());
  PeerRecord mine = PeerRecord::here(std::move(agreed));
  mine.bell = bell.address();
  mine.arena = arena == nullptr ? "" : arena->address();
  mine.recorder = trace::recorder().address();
  mine.messages = settings.direct.empty() ? "" : "ucx";
  std::vector<PeerRecord> peers;
  for (const std::string& text : prefix.exchange(*group.store, "peer", mine.encode(), Deadline::after(group.timeout))) {
    peers.push_back(PeerRecord::decode(text));
  }
  check_peers(group.name, peers);
  return peers;
}

// Returns null if the host path is turned off, or if the process may not map that much memory.
std::unique_ptr<shm::Arena> make_arena(const Settings& settings) {
  if (!settings.host_path) {
    return nullptr;
  }
  try {
    return std::make_unique<shm::Arena>();
  } catch (const std::bad_alloc&) {
    return nullptr;
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

// Blocks until `is_done()`. Returns false if the deadline passes before. Throws what `give_up` and
// check_interrupt() throw.
template <typename IsDone>
bool wait_until(const IsDone& is_done, const GiveUp& give_up, Deadline deadline) {
  constexpr int kBrief = 100;
  Deadline ask = Deadline::after(kInterruptEvery);
  for (int looks = 0; !is_done(); ++looks) {
    give_up();
    if (deadline.passed()) {
      return false;
    }
    if (ask.passed()) {
      check_interrupt();
      ask = Deadline::after(kInterruptEvery);
    }
    looks < kBrief ? std::this_thread::yield() : std::this_thread::sleep_for(microseconds(200));
  }
  return true;
}

// Ends when all members have come to the end of their work.
template <typename Barrier>
class CloseBarrier final : public Barrier {
 public:
  using Barrier::Barrier;
  std::string describe() const override { return "waiting for the other ranks to close"; }
};

}  // namespace

CommContext::CommContext(const GroupSpec& group, FreshPrefix& prefix, const Settings& settings)
    : number_(next_number()),
      settings_(settings),
      world_(group.world),
      store_(group.store),
      arena_(make_arena(settings_)),
      roster_(group.global_ranks, group.rank, exchange_records(group, settings_, prefix, bell_, arena_.get())),
      key_prefix_(prefix.text()),
      direct_(std::make_shared<Direct>()),
      oob_(*store_, key_prefix_, group.rank, static_cast<int>(roster_.size())),
      transports_(ucc_, *direct_, [this](const std::string& note) { on_note(note); }),
      engine_(transports_, park_policy(settings_, roster_.ranks_on_cores()), std::move(bell_),
              {.verdict = kVerdict, .quiet = kQuiet}),
      control_domain_(std::make_shared<FailureDomain>("control")) {
  const Deadline deadline = Deadline::after(group.timeout);
  std::vector<std::uint64_t> everybody = roster_.everybody();
  {
    const MutexLock lock(mutex_);
    open_groups_.emplace(control_domain_.get(), OpenGroup{control_domain_, kControlTeam, everybody});
  }
  const GiveUp give_up = roster_.unless_gone(group.name, everybody);
  std::vector<JobFacts::Door> doors;
  std::unique_ptr<LifeLines> lines = open_lines(give_up, deadline, doors);
  facts_.emplace(number_, roster_, doors);
  watch_.emplace(roster_.neighbours(), std::move(lines), [this](const Notice& notice) { return on_end(notice); });
  wait_for_lines(give_up, deadline);
  oob_.set_give_up(give_up);
  control_team_ = std::make_shared<UccTeam>(kControlTeam, everybody, group.rank, roster_.bells_of(everybody), control_domain_);
  if (arena_ != nullptr) {
    meet_neighbours(give_up, deadline);
    control_board_ = arena_->open(kControlTeam, everybody, group.rank, roster_.bells_of(everybody), control_domain_);
    if (arena_->is_common() == std::optional(true)) {
      open_mail();
    }
  }
  if (!is_one_host() || roster_.needs_ucx_for_messages() || !settings_.native.empty()) {
    create_worker(prefix, give_up, deadline);
  }
  if (mail_ != nullptr && !is_one_host()) {
    mix_carriers();
  }
  if (!is_one_host() || !settings_.native.empty()) {
    create_ucc(group, deadline);
  }
}

void CommContext::open_mail() {
  std::vector<shm::Mail::Neighbour> neighbours;
  for (const shm::Arena::Neighbour& each : roster_.arenas()) {
    const shm::Arena::Boxes boxes = arena_->boxes_with(each.position);
    neighbours.push_back({each.position, boxes.mine, boxes.theirs, roster_.bell_of(each.position)});
  }
  mail_ = std::make_unique<shm::Mail>(roster_.self(), neighbours);
  engine_.with_baton(Deadline(), [&](LoopToken& token) { transports_.use(token, *mail_); });
}

// The ranks exchange the addresses of their workers only where messages need UCX, because these
// addresses are the longest part of what ranks must know of each other.
void CommContext::create_worker(FreshPrefix& prefix, const GiveUp& give_up, Deadline deadline) {
  worker_ = std::make_unique<UcxWorker>(settings_.ucx);
  worker_->set_peers(prefix.exchange(*store_, "worker", worker_->address(), deadline, give_up));
  if (!settings_.direct.empty()) {
    direct_->messages.set(direct_messages(settings_.direct, *worker_));
  }
  engine_.with_baton(Deadline(), [&](LoopToken& token) { transports_.use(token, *worker_); });
}

void CommContext::mix_carriers() {
  std::vector<std::uint64_t> near{roster_.self()};
  for (const shm::Arena::Neighbour& each : roster_.arenas()) {
    near.push_back(each.position);
  }
  mixed_ = std::make_unique<MixedCarrier>(*mail_, *worker_, near);
  engine_.with_baton(Deadline(), [&](LoopToken& token) { transports_.use(token, *mixed_); });
}

// UCX is needed for device memory. A rank cannot know whether its peer has a tensor on a device, so
// then all messages go by UCX.
Carrier& CommContext::carrier_for(const shm::Board* board) const {
  if (mail_ == nullptr || roster_.needs_ucx_for_messages()) {
    return *worker_;
  }
  if (board != nullptr) {
    return *mail_;
  }
  return *mixed_;
}

void CommContext::meet_neighbours(const GiveUp& give_up, Deadline deadline) {
  arena_->map(roster_.self(), roster_.arenas());
  if (!wait_until([&] { return arena_->is_common().has_value(); }, give_up, deadline)) {
    throw StatusError(Status(StatusCode::timeout, "the other ranks on the host of " + roster_.describe(roster_.self()) +
                                                      " did not map the shared memory of that host in time"));
  }
  arena_->close_file();
}

std::string CommContext::why_no_board() const {
  if (arena_ == nullptr) {
    return settings_.host_path ? "this process may not map 64 GiB of address space (see ulimit -v)" : "TORCH_UCC_HOST_PATH is 0";
  }
  return arena_->is_common() == std::optional(true) ? "the ranks are on several hosts" : arena_->why_not();
}

void CommContext::create_ucc(const GroupSpec& group, Deadline deadline) {
  oob_.set_deadline(deadline);
  // UCC looks at the current device as it starts.
  const std::optional<c10::Device> device = settings_.native.empty() ? std::nullopt : Direct::use_current_device();
  engine_.with_baton(deadline, [&](LoopToken& token) { ucc_.create(token, oob_, settings_.ucc, settings_.ucx); });
  const auto create = std::make_shared<CreateTeam>(control_team_, ucc_, "control");
  create->set_deadline(deadline);
  throw_if_error(engine_.run(create));
  all_share_memory_ = !is_one_host() && least_of_all(engine_, control_team_, static_cast<std::int32_t>(mail_ != nullptr),
                                                     "shared memory on all hosts", deadline) != 0;
  // If one rank lacks a life line, other ranks may not hear of a death, either.
  if (settings_.life_lines && !is_one_host() &&
      least_of_all(engine_, control_team_, static_cast<std::int32_t>(!engine_.misses_deaths()), "connections between all hosts",
                   deadline) == 0) {
    engine_.miss_deaths();
  }
  if (!settings_.native.empty()) {
    direct_->collectives.set(
        agree_on_native_collectives(settings_.native, device, {engine_, ucc_, *worker_, control_team_, group.rank}, deadline));
    direct_->device_of_collectives = device;
  }
}

CommContext::~CommContext() = default;

// Each rank sets one key, and reads the keys of the few ranks that it connects to.
std::unique_ptr<LifeLines> CommContext::open_lines(const GiveUp& give_up, Deadline deadline, std::vector<JobFacts::Door>& doors) {
  const std::uint64_t self = roster_.self();
  const LinePlan& plan = roster_.plan();
  if (plan.hosts() < 2) {
    return nullptr;
  }
  if (!settings_.life_lines) {
    engine_.miss_deaths();
    return nullptr;
  }
  const auto key = [&](std::uint64_t position) { return key_prefix_ + "/line/" + std::to_string(position); };
  auto lines = std::make_unique<LifeLines>(self, roster_.size(), plan.count_to(self),
                                           [this](std::uint64_t question) { return answer_visitor(roster_, question); });
  store_->set(key(self), lines->address());
  for (const std::uint64_t peer : plan.from(self)) {
    const std::string text = get_by(*store_, key(peer), deadline, roster_.describe(peer) + " to listen for other hosts", give_up);
    doors.emplace_back(peer, LineAddress::decode(text));
    lines->connect(peer, doors.back().second);
  }
  return lines;
}

// If a connection cannot be made, this only warns, because UCX may still reach that rank.
void CommContext::wait_for_lines(const GiveUp& give_up, Deadline deadline) {
  wait_until([&] { return watch_->unsettled() == 0; }, give_up, deadline);
  std::string names;
  for (const std::uint64_t peer : watch_->without_line()) {
    names += (names.empty() ? "" : ", ") + roster_.describe(peer);
  }
  if (!names.empty()) {
    engine_.miss_deaths();
    TORCH_WARN("ucc: ", roster_.describe(roster_.self()), " cannot open a TCP connection to ", names,
               ". If one of these ranks dies, this rank may notice it only when an operation times out. Allow TCP connections "
               "between the hosts on all ports, or set TORCH_UCC_LIFE_LINES=0 on all ranks to turn these connections off.");
  }
}

// Runs in the watch thread. The member is marked as gone before the open groups are looked at. So a
// group that is created at the same time is found among them, or its creation finds the mark.
void CommContext::on_end(const Notice& notice) {
  std::vector<std::pair<std::shared_ptr<FailureDomain>, Loss>> losses;
  for (const std::uint64_t position : roster_.lost_with(notice)) {
    if (!roster_.mark_gone(position, notice.how)) {
      continue;
    }
    facts_->gone(roster_.global_rank(position), roster_.why_gone(position));
    const MutexLock lock(mutex_);
    for (const auto& [domain, open] : open_groups_) {
      const auto at = std::find(open.positions.begin(), open.positions.end(), position);
      if (at != open.positions.end()) {
        const auto rank = static_cast<int>(at - open.positions.begin());
        losses.emplace_back(open.domain, roster_.loss_in(open.id, open.positions, rank));
      }
    }
  }
  for (auto& [domain, loss] : losses) {
    engine_.lose(*domain, std::move(loss));
  }
}

Membership CommContext::join(const GroupSpec& group, std::uint16_t id) {
  if (group.global_ranks.size() > TagLayout::kMaxRanks) {
    throw StatusError(Status(StatusCode::unsupported,
                             "group '" + group.name + "' has more than " + std::to_string(TagLayout::kMaxRanks) + " ranks"));
  }
  std::vector<std::uint64_t> members = roster_.positions(group.global_ranks);
  std::vector<ChannelMember> channel_members;
  channel_members.reserve(members.size());
  for (const std::uint64_t member : members) {
    channel_members.push_back({member, roster_.bell_of(member)});
  }
  Bells bells = roster_.bells_of(members);
  const auto domain = std::make_shared<FailureDomain>(group.name);
  domain->set_observer([this, id, members] { return roster_.observe(engine_.bell().activity(), id, members); });
  {
    const MutexLock lock(mutex_);
    roster_.throw_if_gone(group.name, members);
    if (const auto it = refused_.find(id); it != refused_.end()) {
      throw StatusError(it->second);
    }
    open_groups_.emplace(domain.get(), OpenGroup{domain, id, members});
  }
  std::shared_ptr<shm::Board> board;
  if (arena_ != nullptr) {
    board = arena_->open(id, members, group.rank, bells, domain);
  }
  auto team = std::make_shared<UccTeam>(id, members, group.rank, std::move(bells), domain);
  std::optional<hosts::Levels> levels;
  if (board == nullptr || !settings_.native.empty()) {
    const MutexLock lock(creation_mutex_);
    create_team(team, group);
    levels = board == nullptr ? divide(group, id, members, domain) : std::nullopt;
  }
  const MutexLock lock(mutex_);
  if (closed_) {
    throw StatusError(
        Status(StatusCode::closed, "group '" + group.name + "' cannot be created: the last other group was closed meanwhile"));
  }
  ++open_teams_;
  if (id == kFirstGroup) {
    founder_open_.store(true);
  }
  Carrier& carrier = carrier_for(board.get());
  return {team, board, std::make_shared<Channel>(carrier, id, std::move(channel_members), group.rank, domain),
          &carrier == mail_.get(), std::move(levels)};
}

void CommContext::create_team(const std::shared_ptr<UccTeam>& team, const GroupSpec& group) {
  auto create = std::make_shared<CreateTeam>(team, ucc_, group.name);
  create->set_deadline(Deadline::after(group.timeout));
  if (const Status created = engine_.run(create); !created.ok()) {
    {
      const MutexLock lock(mutex_);
      open_groups_.erase(&team->domain());
    }
    explaining_scarcity("", [&] { throw_if_error(created); });
  }
}

// Divides a group that spans hosts, if that has a use and the ranks of each host share memory.
std::optional<hosts::Levels> CommContext::divide(const GroupSpec& group, std::uint16_t id,
                                                 const std::vector<std::uint64_t>& members,
                                                 const std::shared_ptr<FailureDomain>& domain) {
  if (!all_share_memory_) {
    return std::nullopt;
  }
  std::vector<std::size_t> host_of(members.size());
  std::transform(members.begin(), members.end(), host_of.begin(),
                 [&](std::uint64_t position) { return roster_.plan().host_of(position); });
  hosts::Levels levels;
  levels.layout = std::make_shared<hosts::Layout>(ByHost(host_of));
  const hosts::Layout& layout = *levels.layout;
  if (!layout.is_useful()) {
    return std::nullopt;
  }
  const auto positions = [&](const std::vector<std::size_t>& ranks) {
    std::vector<std::uint64_t> found(ranks.size());
    std::transform(ranks.begin(), ranks.end(), found.begin(), [&](std::size_t rank) { return members[rank]; });
    return found;
  };
  const auto rank = static_cast<std::size_t>(group.rank);
  levels.host = layout.host_of(rank);
  levels.engine = &engine_;
  levels.piece_bytes = 2 * settings_.segment_bytes;  // smaller pieces cost more switches than they gain
  const std::vector<std::uint64_t> here = positions(layout.on(levels.host));
  const std::size_t place = layout.place_of(rank);
  levels.board = arena_->open(id, here, static_cast<int>(place), roster_.bells_of(here), domain);
  if (levels.board == nullptr) {
    {
      const MutexLock lock(mutex_);
      open_groups_.erase(domain.get());
    }
    throw StatusError(Status(StatusCode::unsupported, "group '" + group.name +
                                                          "' cannot be created: the memory that the ranks of this host share "
                                                          "has no room for another group"));
  }
  levels.board->set_group_ranks(layout.on(levels.host));
  if (place < layout.rows()) {
    levels.row = std::make_shared<UccTeam>(static_cast<std::uint16_t>(id + 1), positions(layout.row(place)),
                                           static_cast<int>(levels.host), Bells{}, domain);
    create_team(levels.row, group);
  }
  return levels;
}

void CommContext::give_up(const Membership& group, const std::string& why) {
  if (!engine_.drain(group.team->domain(), Deadline::after(std::chrono::milliseconds(0)))) {
    fail(group, why);
  }
}

// Also waits until no thread works on the callers' tensors any more, for kForOurselves at most.
void CommContext::fail(const Membership& group, const std::string& why) {
  engine_.fail(group.team->domain(), Status(StatusCode::closed, why));
  const std::shared_ptr<shm::Board>& board = group.levels ? group.levels->board : group.board;
  if (board != nullptr) {
    board->set_state(shm::State::failed);
  }
  engine_.take_back_all(group.team->domain(), Deadline::after(kForOurselves));
}

void CommContext::leave(const Membership& group, const std::string& name, std::chrono::milliseconds limit) {
  const Deadline deadline = Deadline::after(limit);
  const std::shared_ptr<UccTeam>& team = group.team;
  const std::shared_ptr<shm::Board>& board = group.levels ? group.levels->board : group.board;
  if (team->id() == kFirstGroup) {
    founder_open_.store(false);
  }
  const bool drained = engine_.drain(team->domain(), deadline, [&](LoopToken& token) {
    team->destroy(token);
    if (group.levels && group.levels->row != nullptr) {
      group.levels->row->destroy(token);
    }
    if (board != nullptr) {
      board->set_state(shm::State::left);  // a call that comes at this moment does not start any more
    }
  });
  if (!drained) {
    fail(group, "group '" + name + "' was closed while it was in flight");
  }
  if (board != nullptr) {
    arena_->close(team->id(), board);
  }
  if (mail_ != nullptr) {
    engine_.with_baton(Deadline::after(kForOurselves), [&](LoopToken& token) { mail_->drop_group(token, team->id()); });
  }
  {
    const MutexLock lock(mutex_);
    open_groups_.erase(&team->domain());
    if (--open_teams_ != 0) {
      return;
    }
  }
  close(deadline);
}

// When a context is destroyed, UCC flushes to every peer without a time limit. So all members must
// have come here first, and everything that they have sent to each other must have arrived.
bool CommContext::agree_to_close(Deadline deadline) {
  if (engine_.left_behind()) {
    return false;
  }
  std::shared_ptr<Op> barrier;
  if (is_one_host()) {
    barrier = std::make_shared<CloseBarrier<shm::Collective>>(control_board_, shm::Movement());
  } else {
    barrier = std::make_shared<CloseBarrier<Collective>>(control_team_, barrier_args(), Pieces());
  }
  std::vector<std::shared_ptr<Op>> steps;
  if (worker_ != nullptr) {
    steps.push_back(std::make_shared<FlushWorker>(*worker_, *control_domain_));
  }
  steps.push_back(std::move(barrier));
  return std::all_of(steps.begin(), steps.end(), [&](const std::shared_ptr<Op>& step) {
    engine_.post(step, Follow::waits);
    return engine_.wait(*step, deadline) && step->completion().status().ok();
  });
}

// Destroys the context in a thread that can be left behind, because a peer that stops right now
// would block that thread for ever.
bool CommContext::destroy(Deadline deadline) {
  oob_.set_deadline(deadline);
  oob_.set_closing();
  const auto destroyed = std::make_shared<std::promise<bool>>();
  std::future<bool> answer = destroyed->get_future();
  std::thread thread;
  try {
    thread = std::thread([self = shared_from_this(), destroyed, deadline] {
      destroyed->set_value(self->engine_.with_baton(deadline, [&](LoopToken& token) {
        // Before anything is destroyed that an operation might still use
        self->engine_.fail(closed_status());
        self->control_team_->destroy(token);
        self->worker_->destroy(token);
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
  thread.join();  // the thread must not be the last owner of the context
  return answer.get();
}

void CommContext::close(Deadline deadline) {
  const auto self = shared_from_this();
  // At exit, without destroy_process_group(): their teams, perhaps their operations, live on
  bool groups_are_open = false;
  {
    const MutexLock lock(mutex_);
    if (std::exchange(closed_, true)) {
      return;
    }
    groups_are_open = open_teams_ != 0;
  }
  ContextRegistry::of_process().remove(self);
  engine_.bell().set_presence(Bell::Presence::leaving);
  const bool all_here = agree_to_close(deadline);
  if (all_here) {
    engine_.bell().set_presence(Bell::Presence::left);
  }
  watch_->stop(all_here ? Ending::left : Ending::exited);
  facts_.reset();
  // Without UCC and UCX nothing is left that peers could still use in this process.
  const bool has_libraries = worker_ != nullptr;
  const bool destroyed =
      !groups_are_open && (!has_libraries || (all_here && destroy(std::max(deadline, Deadline::after(kForOurselves)))));
  // From here on no call reaches UCC, even if a group or a Work still exists.
  engine_.fail(closed_status());
  engine_.stop_background();
  delivery_.stop(std::max(deadline, Deadline::after(kForOurselves)));
  if (!destroyed) {
    if (!groups_are_open) {
      engine_.with_baton(deadline, [&](LoopToken& token) { worker_->destroy_if_unused(token); });
    }
    ContextRegistry::of_process().keep(self);
  }
}

std::vector<std::uint64_t> CommContext::open_contexts() {
  std::vector<std::uint64_t> numbers;
  for (const auto& context : ContextRegistry::of_process().open()) {
    numbers.push_back(context->number());
  }
  return numbers;
}

void CommContext::close_all(std::chrono::milliseconds limit) {
  if (in_forked_child()) {
    return;
  }
  for (const auto& context : ContextRegistry::of_process().open()) {
    context->close(Deadline::after(limit));
  }
}

}  // namespace torch_ucc
