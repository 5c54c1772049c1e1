#include "liveness/line_plan.h"

#include <algorithm>
#include <cmath>

namespace torch_ucc {

std::vector<std::uint64_t> LinePlan::from(std::uint64_t position) const {
  if (hosts() < 2) {
    return {};
  }
  const auto [host, index] = by_host_.place_of(position);
  const auto counterpart = [&, index = index](std::size_t other) {
    const std::vector<std::size_t>& ranks = by_host_.on(other % hosts());
    return ranks[index % ranks.size()];
  };
  const std::vector<std::size_t>& own = by_host_.on(host);
  std::vector<std::uint64_t> peers;
  for (const std::uint64_t peer : {counterpart(host + 1), counterpart(host + far()), own[(index + 1) % own.size()]}) {
    if (peer != position && std::find(peers.begin(), peers.end(), peer) == peers.end()) {
      peers.push_back(peer);
    }
  }
  return peers;
}

std::size_t LinePlan::far() const { return static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(hosts())))); }

std::set<std::size_t> LinePlan::neighbours(std::size_t host) const {
  std::set<std::size_t> others;
  for (const std::size_t step : {std::size_t{1}, far(), hosts() - 1, hosts() - far() % hosts()}) {
    others.insert((host + step) % hosts());
  }
  others.erase(host);
  return others;
}

std::size_t LinePlan::count_to(std::uint64_t position) const {
  std::size_t count = 0;
  for (std::uint64_t other = 0; other < by_host_.ranks(); ++other) {
    const std::vector<std::uint64_t> peers = from(other);
    count += static_cast<std::size_t>(std::count(peers.begin(), peers.end(), position));
  }
  return count;
}

}  // namespace torch_ucc
