// Which ranks have life lines to each other. Each rank has few, but a notice still reaches all
// ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/by_host.h"

namespace torch_ucc {

// The hosts form a ring. Each rank connects to at most three ranks:
// - the rank with its index on the next host, which notices the end of the rank even if the whole
//   host is gone;
// - the rank with its index on the host that is sqrt(hosts) further on, so that a notice goes round
//   the ring in about sqrt(hosts) steps;
// - the next rank on its own host, so that a notice which reaches one rank of a host reaches all.
// If all hosts have equally many ranks, each rank accepts as many lines as it makes.
class LinePlan {
 public:
  // `hosts`: a name for each position. Ranks with equal names see each other's processes.
  explicit LinePlan(const std::vector<std::string>& hosts) : by_host_(hosts) {}

  std::size_t hosts() const { return by_host_.hosts(); }
  // Returns the number of the host of `position`. Hosts are numbered from 0 in the order in which
  // they first occur.
  std::size_t host_of(std::uint64_t position) const { return by_host_.place_of(position).host; }
  // Returns the other hosts that `host` has lines to or from.
  std::set<std::size_t> neighbours(std::size_t host) const;
  // Returns the positions that `position` connects to; empty if there is only one host.
  std::vector<std::uint64_t> from(std::uint64_t position) const;
  // Returns how many ranks connect to `position`.
  std::size_t count_to(std::uint64_t position) const;

 private:
  std::size_t far() const;

  const ByHost by_host_;  // its ranks are positions
};

}  // namespace torch_ucc
