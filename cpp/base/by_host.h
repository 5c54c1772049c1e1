// Sorts ranks by the hosts that they are on.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

namespace torch_ucc {

// Hosts are numbered from 0 in the order in which they first occur, and the ranks of a host in their
// order.
class ByHost {
 public:
  // `host_of`: the name or number of the host of each rank.
  template <typename Name>
  explicit ByHost(const std::vector<Name>& host_of) {
    std::map<Name, std::size_t> numbers;
    for (const Name& name : host_of) {
      const std::size_t rank = places_.size();
      const std::size_t host = numbers.try_emplace(name, numbers.size()).first->second;
      if (host == hosts_.size()) {
        hosts_.emplace_back();
      }
      places_.push_back({host, hosts_[host].size()});
      hosts_[host].push_back(rank);
    }
  }

  struct Place {
    std::size_t host;
    std::size_t index;  // on this host
  };

  std::size_t hosts() const { return hosts_.size(); }
  std::size_t ranks() const { return places_.size(); }
  Place place_of(std::size_t rank) const { return places_.at(rank); }
  // The ranks on a host.
  const std::vector<std::size_t>& on(std::size_t host) const { return hosts_.at(host); }

 private:
  std::vector<std::vector<std::size_t>> hosts_;
  std::vector<Place> places_;  // by rank
};

}  // namespace torch_ucc
