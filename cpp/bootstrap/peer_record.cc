#include "bootstrap/peer_record.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <system_error>

#include "base/core.h"
#include "base/host.h"
#include "base/random.h"
#include "base/status.h"

namespace torch_ucc {
namespace {

// The fields that are encoded as plain text, in this order. The pid and the agreed values follow.
constexpr std::array<std::pair<const char*, std::string PeerRecord::*>, 8> kTexts{{
    {"host", &PeerRecord::host},
    {"host_id", &PeerRecord::host_id},
    {"nonce", &PeerRecord::nonce},
    {"bell", &PeerRecord::bell},
    {"arena", &PeerRecord::arena},
    {"cores", &PeerRecord::cores},
    {"recorder", &PeerRecord::recorder},
    {"messages", &PeerRecord::messages},
}};
constexpr std::size_t kPid = kTexts.size();
constexpr std::size_t kAgreed = kPid + 1;

std::string shown(const std::optional<std::string>& value) { return value ? "'" + *value + "'" : "not set"; }

}  // namespace

Status difference(const std::string& group, const PeerRecord& one, int its_rank, const PeerRecord& other, int rank) {
  std::map<std::string, std::pair<std::optional<std::string>, std::optional<std::string>>> both;
  for (const auto& [name, value] : one.agreed) {
    both[name].first = value;
  }
  for (const auto& [name, value] : other.agreed) {
    both[name].second = value;
  }
  std::string text = "the ranks of group '" + group + "' have different settings; give every rank the same:";
  for (const auto& [name, values] : both) {
    if (values.first != values.second) {
      text += "\n  " + name + ": " + shown(values.first) + " on rank " + std::to_string(its_rank) + " (" + one.host + "), " +
              shown(values.second) + " on rank " + std::to_string(rank) + " (" + other.host + ")";
    }
  }
  return {StatusCode::invalid, text};
}

std::string PeerRecord::encode() const {
  NamedValues fields;
  for (const auto& [name, text] : kTexts) {
    fields.emplace_back(name, this->*text);
  }
  fields.emplace_back("pid", std::to_string(pid));
  fields.insert(fields.end(), agreed.begin(), agreed.end());
  return encode_values(fields);
}

PeerRecord PeerRecord::decode(const std::string& text) {
  const NamedValues fields = decode_values(text);
  PeerRecord record;
  for (std::size_t i = 0; i < kTexts.size(); ++i) {
    record.*kTexts.at(i).second = value_at(fields, i, kTexts.at(i).first);
  }
  const std::string& pid = value_at(fields, kPid, "pid");
  if (const auto [end, error] = std::from_chars(pid.data(), pid.data() + pid.size(), record.pid);
      error != std::errc() || end != pid.data() + pid.size()) {
    refuse_published();
  }
  record.agreed.assign(fields.begin() + kAgreed, fields.end());
  return record;
}

std::string PeerRecord::neighbourhood() const { return bell.empty() ? nonce : host_id + ":" + bell.substr(0, bell.find(':')); }

PeerRecord PeerRecord::here(NamedValues agreed) {
  PeerRecord record;
  record.host = host_name();
  record.host_id = boot_id();
  if (record.host_id.empty()) {
    record.host_id = record.host;
  }
  record.nonce = std::to_string(random_number());
  record.cores = allowed_cores();
  record.pid = ::getpid();
  record.agreed = std::move(agreed);
  return record;
}

void check_peers(const std::string& group, const std::vector<PeerRecord>& peers) {
  // Every rank checks all records: if one differs from the record of rank 0, all ranks throw the
  // same error.
  const auto count = static_cast<int>(peers.size());
  for (int rank = 1; rank < count; ++rank) {
    const auto& other = peers[static_cast<std::size_t>(rank)];
    if (other.agreed != peers.front().agreed) {
      throw StatusError(difference(group, peers.front(), 0, other, rank));
    }
  }
  std::map<std::pair<std::string, long>, int> seen;
  for (int rank = 0; rank < count; ++rank) {
    const auto& peer = peers[static_cast<std::size_t>(rank)];
    const auto [it, fresh] = seen.try_emplace({peer.host_id, peer.pid}, rank);
    if (!fresh) {
      throw StatusError(Status(StatusCode::invalid,
                               "ranks " + std::to_string(it->second) + " and " + std::to_string(rank) + " run on one machine (" +
                                   peer.host + ") with the same process id " + std::to_string(peer.pid) +
                                   ": they are in different pid namespaces (containers), and UCC takes them for one process. "
                                   "Share the pid namespace of the host or pod, or make the process ids differ."));
    }
  }
}

int ranks_on_cores(const std::vector<PeerRecord>& peers, int my_rank) {
  const PeerRecord& mine = peers.at(static_cast<std::size_t>(my_rank));
  return static_cast<int>(std::count_if(peers.begin(), peers.end(), [&](const PeerRecord& peer) {
    return peer.host_id == mine.host_id && peer.cores == mine.cores;
  }));
}

}  // namespace torch_ucc
