#include "backend/device_memory.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backend/vote.h"
#include "ucc/memory.h"

namespace torch_ucc {
namespace {

// Both libraries must support the memory: UCC's own kernels work there, and UCX sends from there
// and receives into it.
MemoryTypes<ucc_memory_type_t>::Entry native_memory(const std::string& name, const Libraries& libraries, Deadline deadline) {
  const std::optional<ucc_memory_type_t> type = memory_type(name);
  if (!type) {
    return {std::nullopt, "UCC has no memory type '" + name + "'"};
  }
  const auto alone =
      std::make_shared<UccTeam>(UccTeam::kMaxId, std::vector<std::uint64_t>{static_cast<std::uint64_t>(libraries.rank)}, 0,
                                Bells{}, std::make_shared<FailureDomain>("alone"));
  const auto create = std::make_shared<CreateTeam>(alone, libraries.ucc, "alone");
  create->set_deadline(deadline);
  // The others wait for the vote
  if (const Status created = libraries.engine.run(create); !created.ok()) {
    return {std::nullopt, "UCC cannot create the team with which this is tested: " + created.message()};
  }
  bool does = false;
  libraries.engine.with_baton(deadline, [&](LoopToken& token) {
    does = computes_in(token, *alone, *type);
    alone->destroy(token);
  });
  if (!does) {
    return {std::nullopt,
            "this UCC does not support the memory type '" + name + "': it was built without it, or found no device"};
  }
  if (!libraries.worker.memory_type(name)) {
    return {std::nullopt, "this UCX does not support the memory type '" + name + "'"};
  }
  return {type};
}

}  // namespace

MemoryTypes<MessageMemory>::Entries direct_messages(const NamedValues& wanted, const UcxWorker& worker) {
  MemoryTypes<MessageMemory>::Entries found;
  for (const auto& [device, name] : wanted) {
    found[device] = {worker.memory_type(name), "this UCX does not support the memory type '" + name +
                                                   "': its module is missing or found no device, or UCX_TLS excludes it"};
  }
  return found;
}

MemoryTypes<ucc_memory_type_t>::Entries agree_on_native_collectives(const NamedValues& wanted, std::optional<c10::Device> device,
                                                                    const Libraries& libraries, Deadline deadline) {
  MemoryTypes<ucc_memory_type_t>::Entries found;
  for (const auto& [kind, name] : wanted) {
    found[kind].why_not = "PyTorch had no such device when the first group was created";
    if (device && kind == c10::DeviceTypeName(device->type(), /*lower_case=*/true)) {
      found[kind] = native_memory(name, libraries, deadline);
    }
  }
  const bool mine = std::any_of(found.begin(), found.end(), [](const auto& each) { return each.second.type.has_value(); });
  const std::int32_t all = least_of_all(libraries.engine, libraries.everybody, static_cast<std::int32_t>(mine),
                                        "collectives in the memory of devices", deadline);
  for (auto& [kind, entry] : found) {
    if (entry.type && all == 0) {
      entry = {std::nullopt, "UCC on another rank does not support the memory of such a device"};
    }
  }
  return found;
}

}  // namespace torch_ucc
