// Between which ranks there are life lines: few for each, and still news of any end reaches
// everybody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace torch_ucc {

// Hosts form a ring. A rank has a line to its counterpart on the next host, which notices its end
// even when its whole host is gone; one to its counterpart about a square root of the hosts further
// on, so that news goes round in as many steps; and one to the next rank of its own host, so that
// what reaches one of a host reaches all. That is three lines made by a rank, and as many accepted
// where hosts have equally many ranks, however many there are.
class LinePlan {
 public:
  // By position: equal names are ranks that see each other's processes.
  explicit LinePlan(const std::vector<std::string>& hosts);

  std::size_t hosts() const { return by_host_.size(); }
  // The number of its host, from 0 in the order of their first position.
  std::size_t host_of(std::uint64_t position) const { return places_.at(position).host; }
  // The other hosts that `host` has lines to or from.
  std::set<std::size_t> neighbours(std::size_t host) const;
  // Whom `position` connects to; empty if there is one host.
  std::vector<std::uint64_t> from(std::uint64_t position) const;
  // How many connect to `position`.
  std::size_t count_to(std::uint64_t position) const;

 private:
  struct Place {
    std::size_t host;
    std::size_t index;  // on it
  };

  std::size_t far() const;

  std::vector<std::vector<std::uint64_t>> by_host_;
  std::vector<Place> places_;  // by position
};

}  // namespace torch_ucc
