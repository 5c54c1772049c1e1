// How a group that spans hosts is divided.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shm/board.h"
#include "ucc/team.h"

namespace torch_ucc::hosts {

// The ranks of a group by host: hosts in the order of their lowest rank, the ranks of a host in the
// order of their ranks. Row i has the rank at place i of each host. There are as many rows as the
// host with the fewest ranks has places, so some ranks of other hosts may be in no row.
class Layout {
 public:
  // `host_of` names the host of each rank.
  explicit Layout(const std::vector<std::string>& host_of) {
    std::vector<std::string> names;
    for (std::size_t rank = 0; rank < host_of.size(); ++rank) {
      std::size_t host = 0;
      while (host < names.size() && names[host] != host_of[rank]) {
        ++host;
      }
      if (host == names.size()) {
        names.push_back(host_of[rank]);
        hosts_.emplace_back();
      }
      places_.emplace_back(host, hosts_[host].size());
      hosts_[host].push_back(static_cast<int>(rank));
    }
    for (const std::vector<int>& host : hosts_) {
      rows_ = rows_ == 0 ? host.size() : std::min(rows_, host.size());
      most_ = std::max(most_, host.size());
    }
  }

  std::size_t hosts() const { return hosts_.size(); }
  std::size_t rows() const { return rows_; }
  // Whether dividing the group has a use: there are several hosts, and one of them has several ranks.
  bool is_useful() const { return hosts_.size() > 1 && most_ > 1; }
  std::size_t host_of(int rank) const { return places_[static_cast<std::size_t>(rank)].first; }
  std::size_t place_of(int rank) const { return places_[static_cast<std::size_t>(rank)].second; }
  // The ranks on a host.
  const std::vector<int>& on(std::size_t host) const { return hosts_[host]; }
  // The ranks of a row, by host.
  std::vector<int> row(std::size_t row) const {
    std::vector<int> ranks;
    for (const std::vector<int>& host : hosts_) {
      ranks.push_back(host[row]);
    }
    return ranks;
  }

 private:
  std::vector<std::vector<int>> hosts_;
  std::vector<std::pair<std::size_t, std::size_t>> places_;  // by rank: its host, and its place there
  std::size_t rows_ = 0;
  std::size_t most_ = 0;
};

// What one rank has of such a group.
struct Levels {
  std::shared_ptr<shm::Board> board;  // of the ranks on its host
  std::shared_ptr<UccTeam> row;       // null if the rank is in no row
  std::size_t rows = 0;
};

}  // namespace torch_ucc::hosts
