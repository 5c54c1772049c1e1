// A group that is to be created, and where.
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

// Processes that number themselves from 0 and make groups of each other: what torch calls the
// default group, and the groups that derive from it. A process may be in several, which may number
// other processes alike; so a world is told by its identity as an object, never by its ranks.
struct World {
  std::size_t size = 0;
};

// A group that is to be created, seen from one of its members.
struct GroupSpec {
  std::shared_ptr<KvStore> store;  // of this group: its keys are not those of another group
  std::string name;
  std::shared_ptr<const World> world;
  std::vector<std::int64_t> global_ranks;  // in the world, by rank of the group
  int rank = 0;
  std::chrono::milliseconds timeout{0};
  bool apart = false;  // on a context of its own: in that of the others a rank has died, which may have left queues blocked
};

class CommContext;

// Where a group is created.
struct Place {
  GroupSpec group;
  std::shared_ptr<CommContext> context;   // that it shares with other groups; null: one of its own, over exactly its members
  std::uint16_t id = 0;                   // of the group on its context
  std::shared_ptr<FreshPrefix> prefix{};  // of the context that is to be made
};

}  // namespace torch_ucc
