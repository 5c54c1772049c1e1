// The table of operations: each call of c10d that we serve, under the name that users know.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "compat/torch_compat.h"

namespace torch_ucc {

struct Operation {
  const char* name;   // in torch.distributed; used in errors
  const char* title;  // in profiles; in the style of torch's own backends
  c10d::OpType type;
};

namespace operation {

using c10d::OpType;

inline constexpr std::array<Operation, 23> kTable{{
    {"all_gather", "ucc:all_gather", OpType::ALLGATHER},
    {"all_gather_coalesced", "ucc:all_gather", OpType::ALLGATHER_COALESCED},
    {"all_gather_into_tensor", "ucc:_all_gather_base", OpType::_ALLGATHER_BASE},
    {"all_gather_into_tensor_coalesced", "ucc:all_gather_into_tensor_coalesced", OpType::COALESCED},
    {"all_reduce", "ucc:all_reduce", OpType::ALLREDUCE},
    {"all_reduce_coalesced", "ucc:all_reduce", OpType::ALLREDUCE_COALESCED},
    {"sparse_all_reduce", "ucc:sparse_all_reduce", OpType::_ALLREDUCE_SPARSE},
    {"all_to_all", "ucc:all_to_all", OpType::ALLTOALL},
    {"all_to_all_single", "ucc:all_to_all", OpType::ALLTOALL_BASE},
    {"barrier", "ucc:barrier", OpType::BARRIER},
    {"broadcast", "ucc:broadcast", OpType::BROADCAST},
    {"coalesced", "ucc:coalesced", OpType::COALESCED},
    {"gather", "ucc:gather", OpType::GATHER},
    {"gather_single", "ucc:gather", OpType::GATHER},
    {"monitored_barrier", "ucc:monitored_barrier", OpType::BARRIER},
    {"recv", "ucc:recv", OpType::RECV},
    {"recv_any_source", "ucc:recvAnySource", OpType::RECVANYSOURCE},
    {"reduce", "ucc:reduce", OpType::REDUCE},
    {"reduce_scatter", "ucc:reduce_scatter", OpType::REDUCE_SCATTER},
    {"reduce_scatter_tensor", "ucc:_reduce_scatter_base", OpType::_REDUCE_SCATTER_BASE},
    {"reduce_scatter_tensor_coalesced", "ucc:reduce_scatter_tensor_coalesced", kReduceScatterTensorCoalescedType},
    {"scatter", "ucc:scatter", OpType::SCATTER},
    {"send", "ucc:send", OpType::SEND},
}};

// Does not compile for a name that is not in the table.
consteval const Operation& named(std::string_view name) {
  for (const Operation& row : kTable) {
    if (name == row.name) {
      return row;
    }
  }
  throw "no such operation";
}
inline constexpr const Operation& kAllGather = named("all_gather");
inline constexpr const Operation& kAllGatherCoalesced = named("all_gather_coalesced");
inline constexpr const Operation& kAllGatherInto = named("all_gather_into_tensor");
inline constexpr const Operation& kAllGatherIntoCoalesced = named("all_gather_into_tensor_coalesced");
inline constexpr const Operation& kAllReduce = named("all_reduce");
inline constexpr const Operation& kAllReduceCoalesced = named("all_reduce_coalesced");
inline constexpr const Operation& kAllReduceSparse = named("sparse_all_reduce");
inline constexpr const Operation& kAllToAll = named("all_to_all");
inline constexpr const Operation& kAllToAllSingle = named("all_to_all_single");
inline constexpr const Operation& kBarrier = named("barrier");
inline constexpr const Operation& kBroadcast = named("broadcast");
inline constexpr const Operation& kCoalesced = named("coalesced");
inline constexpr const Operation& kGather = named("gather");
inline constexpr const Operation& kGatherSingle = named("gather_single");
inline constexpr const Operation& kMonitoredBarrier = named("monitored_barrier");
inline constexpr const Operation& kRecv = named("recv");
inline constexpr const Operation& kRecvAnySource = named("recv_any_source");
inline constexpr const Operation& kReduce = named("reduce");
inline constexpr const Operation& kReduceScatter = named("reduce_scatter");
inline constexpr const Operation& kReduceScatterTensor = named("reduce_scatter_tensor");
inline constexpr const Operation& kReduceScatterTensorCoalesced = named("reduce_scatter_tensor_coalesced");
inline constexpr const Operation& kScatter = named("scatter");
inline constexpr const Operation& kSend = named("send");

// Whether users can call the operation with this torch.
constexpr bool is_offered(const Operation& op) {
  return &op != &kCoalesced && (TUCC_TORCH_HAS_RECONFIGURE || &op != &kGatherSingle);
}

// Whether the operation is a message between two ranks. Messages are counted apart from the
// collectives of the group.
constexpr bool is_message(const Operation& op) {
  return op.type == OpType::SEND || op.type == OpType::RECV || op.type == OpType::RECVANYSOURCE;
}

// Each operation has a number, which is the same in every process of this build. at() returns null
// for a number that has no operation, since numbers may come from the memory of other processes.
constexpr const Operation* at(std::uint16_t index) { return index < kTable.size() ? &kTable[index] : nullptr; }
constexpr std::uint16_t index_of(const Operation& op) { return static_cast<std::uint16_t>(&op - kTable.data()); }

}  // namespace operation

}  // namespace torch_ucc
