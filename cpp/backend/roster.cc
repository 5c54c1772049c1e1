#include "backend/roster.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <utility>

#include "base/process_state.h"
#include "ops/operations.h"

namespace torch_ucc {
namespace {

std::map<std::uint64_t, Bell> find_bells(const std::vector<PeerRecord>& peers, std::uint64_t self) {
  std::map<std::uint64_t, Bell> bells;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (i != self && peers[i].host_id == peers[self].host_id) {
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
      return " was lost: its TCP connection was reset, so it died or its network failed";
    case Ending::unreachable:
      return " cannot be reached: its host has not answered for 4 s, so the host or its network has failed";
  }
  return " was lost";
}

}  // namespace

Roster::Roster(std::vector<std::int64_t> global_ranks, int self, std::vector<PeerRecord> peers)
    : global_ranks_(std::move(global_ranks)),
      self_(static_cast<std::uint64_t>(self)),
      peers_(std::move(peers)),
      bells_(find_bells(peers_, self_)),
      plan_(neighbourhoods(peers_)) {}

std::vector<std::uint64_t> Roster::everybody() const {
  std::vector<std::uint64_t> positions(peers_.size());
  std::iota(positions.begin(), positions.end(), std::uint64_t{0});
  return positions;
}

bool Roster::needs_ucx_for_messages() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const PeerRecord& peer) { return peer.messages == "ucx"; });
}

bool Roster::covers(const std::vector<std::int64_t>& global_ranks) const {
  return std::all_of(global_ranks.begin(), global_ranks.end(), [this](std::int64_t rank) {
    return std::find(global_ranks_.begin(), global_ranks_.end(), rank) != global_ranks_.end();
  });
}

std::vector<std::uint64_t> Roster::positions(const std::vector<std::int64_t>& global_ranks) const {
  std::vector<std::uint64_t> found;
  found.reserve(global_ranks.size());
  for (const std::int64_t rank : global_ranks) {
    found.push_back(
        static_cast<std::uint64_t>(std::find(global_ranks_.begin(), global_ranks_.end(), rank) - global_ranks_.begin()));
  }
  return found;
}

std::string Roster::describe(std::uint64_t position) const {
  const PeerRecord& peer = peers_[position];
  return "rank " + std::to_string(global_ranks_[position]) + " (host " + peer.host + ", pid " + std::to_string(peer.pid) + ")";
}

const Bell* Roster::bell_of(std::uint64_t position) const {
  const auto it = bells_.find(position);
  return it == bells_.end() ? nullptr : &it->second;
}

Bells Roster::bells_of(const std::vector<std::uint64_t>& positions) const {
  Bells bells;
  for (const std::uint64_t position : positions) {
    if (const Bell* bell = bell_of(position)) {
      bells.on_host.push_back(bell);
    }
  }
  bells.complete = bells.on_host.size() + 1 == positions.size();
  return bells;
}

std::vector<shm::Arena::Neighbour> Roster::arenas() const {
  std::vector<shm::Arena::Neighbour> found;
  for (const std::uint64_t position : everybody()) {
    if (position != self_ && plan_.host_of(position) == plan_.host_of(self_)) {
      found.push_back({position, peers_[position].arena, describe(position)});
    }
  }
  return found;
}

std::vector<PeerWatch::Process> Roster::neighbours() const {
  std::vector<PeerWatch::Process> found;
  for (std::uint64_t position = 0; position < peers_.size(); ++position) {
    if (position != self_ && plan_.host_of(position) == plan_.host_of(self_)) {
      // Lives as long as the roster. A process that has ended already has none.
      const Bell* const bell = bell_of(position);
      found.push_back({position, static_cast<int>(peers_[position].pid),
                       [bell] { return bell == nullptr ? Ending::died : ending_of(bell->presence()); }});
    }
  }
  return found;
}

// All ranks of a silent host are lost. If every host to which this host has lines is silent, this
// host itself was cut off, and the ranks of all other hosts are lost.
std::vector<std::uint64_t> Roster::lost_with(const Notice& notice) {
  if (notice.how != Ending::unreachable || notice.peer == self_) {
    return {notice.peer};
  }
  const std::size_t here = plan_.host_of(self_);
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

bool Roster::mark_gone(std::uint64_t position, Ending how) {
  const MutexLock lock(mutex_);
  return gone_.try_emplace(position, StatusCode::peer_gone, describe(position) + what_happened(how)).second;
}

std::string Roster::why_gone(std::uint64_t position) const {
  const MutexLock lock(mutex_);
  const auto it = gone_.find(position);
  return it == gone_.end() ? "" : it->second.message();
}

void Roster::throw_if_gone(const std::string& group, const std::vector<std::uint64_t>& positions) const {
  const MutexLock lock(mutex_);
  for (const std::uint64_t position : positions) {
    if (const auto it = gone_.find(position); it != gone_.end()) {
      throw StatusError(Status(StatusCode::peer_gone, "group '" + group + "' cannot be created: " + it->second.message()));
    }
  }
}

GiveUp Roster::unless_gone(const std::string& group, std::vector<std::uint64_t> positions) const {
  return [this, group, positions = std::move(positions)] { throw_if_gone(group, positions); };
}

Loss Roster::loss_in(std::uint16_t id, const std::vector<std::uint64_t>& positions, int rank) const {
  const std::uint64_t position = positions[static_cast<std::size_t>(rank)];
  Loss loss{rank, {}};
  {
    const MutexLock lock(mutex_);
    loss.reason = gone_.at(position);
  }
  if (const Bell* const bell = bell_of(position)) {
    const Bell::Activity last = bell->activity();
    const Operation* const op = operation::at(last.operation);
    if (last.group == 0) {
      loss.last_called = 0;
    } else if (last.group == id && op != nullptr && !operation::is_message(*op)) {
      loss.last_called = last.seq;
    }
  }
  return loss;
}

std::string Roster::observe(const Bell::Activity& mine, std::uint16_t id, const std::vector<std::uint64_t>& positions) const {
  constexpr std::size_t kNamed = 8;
  std::vector<std::string> others;
  std::size_t elsewhere = 0;
  for (const std::uint64_t position : positions) {
    if (position == self_) {
      continue;
    }
    const Bell* const bell = bell_of(position);
    if (bell == nullptr) {
      ++elsewhere;
      continue;
    }
    const Bell::Activity its = bell->activity();
    if (its.group == mine.group && its.operation == mine.operation && its.seq == mine.seq) {
      continue;
    }
    const std::string text = describe(position) + (process_state(peers_[position].pid) == 'T' ? " is stopped," : "");
    if (its.group == 0) {
      others.push_back(text + " has called nothing yet");
      continue;
    }
    const auto ago = std::chrono::duration_cast<milliseconds>(Clock::now() - its.since);
    const Operation* const op = operation::at(its.operation);
    others.push_back(text + " last called " + (op == nullptr ? "an unknown operation" : op->name) + " seq " +
                     std::to_string(its.seq) + (its.group == id ? "" : " of another group") + " " + std::to_string(ago.count()) +
                     " ms ago");
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(kNamed, others.size()); ++i) {
    text += (i == 0 ? "" : "; ") + others[i];
  }
  if (others.size() > kNamed) {
    text += "; and " + std::to_string(others.size() - kNamed) + " more";
  }
  if (elsewhere != 0) {
    text += (text.empty() ? "" : "; ") + std::to_string(elsewhere) + " rank(s) on other hosts, of which this rank knows nothing";
  }
  return text.empty() ? "Every other rank is in the same call." : "Not in the same call: " + text + ".";
}

}  // namespace torch_ucc
