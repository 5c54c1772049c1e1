// How a group that spans hosts is divided.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/by_host.h"
#include "progress/engine.h"
#include "shm/board.h"
#include "ucc/team.h"

namespace torch_ucc::hosts {

// Row i has the rank at place i of each host. There are as many rows as the host with the fewest
// ranks has places, so some ranks of other hosts may be in no row.
class Layout {
 public:
  // `by_host` has the ranks of the group.
  explicit Layout(ByHost by_host) : by_host_(std::move(by_host)) {
    for (std::size_t host = 0; host < hosts(); ++host) {
      const std::size_t ranks = on(host).size();
      rows_ = host == 0 ? ranks : std::min(rows_, ranks);
    }
  }

  std::size_t hosts() const { return by_host_.hosts(); }
  std::size_t rows() const { return rows_; }
  std::size_t ranks() const { return by_host_.ranks(); }
  // Whether dividing the group has a use: there are several hosts, and one of them has several ranks.
  bool is_useful() const { return hosts() > 1 && ranks() > hosts(); }
  // Whether each host has as many ranks, so that each rank is in a row.
  bool is_even() const { return ranks() == hosts() * rows_; }
  std::size_t host_of(std::size_t rank) const { return by_host_.place_of(rank).host; }
  std::size_t place_of(std::size_t rank) const { return by_host_.place_of(rank).index; }
  // The ranks on a host.
  const std::vector<std::size_t>& on(std::size_t host) const { return by_host_.on(host); }
  // The ranks of a row, by host.
  std::vector<std::size_t> row(std::size_t row) const {
    std::vector<std::size_t> ranks;
    for (std::size_t host = 0; host < hosts(); ++host) {
      ranks.push_back(on(host)[row]);
    }
    return ranks;
  }

 private:
  const ByHost by_host_;
  std::size_t rows_ = 0;
};

// What one rank has of such a group.
struct Levels {
  std::shared_ptr<const Layout> layout;
  std::size_t host = 0;               // of this rank
  std::shared_ptr<shm::Board> board;  // of the ranks on its host
  std::shared_ptr<UccTeam> row;       // null if the rank is in no row
  std::size_t piece_bytes = 0;        // collectives are cut into pieces of so many bytes
  Engine* engine = nullptr;           // which runs the collectives

  std::size_t place() const { return board->rank(); }
};

}  // namespace torch_ucc::hosts
