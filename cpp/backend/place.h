// A group that is to be created, and the context for it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/fresh_prefix.h"
#include "bootstrap/kv_store.h"

namespace torch_ucc {

// A set of processes that are numbered from 0 and make groups of each other: torch's default group,
// and the groups that derive from it. A process may be in several worlds, and these may use the
// same numbers for other processes. So worlds are compared by the identity of the objects, never by
// ranks.
struct World {
  std::size_t size = 0;
};

// A group that is to be created, seen from one of its members.
struct GroupSpec {
  // Has keys of this group only; if `apart`, the store of the group it derives from
  std::shared_ptr<KvStore> store;
  std::string name;
  std::shared_ptr<const World> world;
  std::vector<std::int64_t> global_ranks;  // in the world, by rank of the group
  int rank = 0;
  std::chrono::milliseconds timeout{0};
  // Whether to make a context for this group alone: in the context of the other groups, a rank has
  // died, which may have left queues blocked.
  bool apart = false;
};

class CommContext;

// Where a group is created.
struct Place {
  GroupSpec group;
  // Shared with other groups; null: make one over exactly the members
  std::shared_ptr<CommContext> context;
  std::uint16_t id = 0;                   // of the group on its context
  std::shared_ptr<FreshPrefix> prefix{};  // of the context to make, if `context` is null
};

}  // namespace torch_ucc
