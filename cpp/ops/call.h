// Describes a call: the part of every error message that does not depend on what went wrong.
#pragma once

#include <ucc/api/ucc.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "compat/torch_compat.h"
#include "hosts/levels.h"
#include "ops/operations.h"

namespace torch_ucc {

struct GroupInfo {
  std::string name;
  int rank = 0;
  int size = 1;
  // All members share memory, so the collectives of the group go through it
  bool shares_memory = false;
  // How the group is divided by host; null if it is not
  std::shared_ptr<const hosts::Layout> layout{};
};

struct Call {
  static constexpr int kNoPeer = -1;

  const Operation* op = &operation::kCoalesced;
  // Counts the group's collectives from 1; its messages have a counter of their own
  std::uint64_t seq = 0;
  std::shared_ptr<const GroupInfo> group;
  int peer = kNoPeer;  // of send and recv, with its tag
  int tag = 0;
  // UCC's type of the device memory in which it works on the tensors. Empty if the tensors, or
  // their stand-ins, are on the host.
  std::optional<ucc_memory_type_t> device_memory{};

  ucc_memory_type_t memory() const { return device_memory.value_or(UCC_MEMORY_TYPE_HOST); }
  // Whether the call is a collective through shared memory.
  bool through_memory() const { return group->shares_memory && !device_memory; }
  bool is_message() const { return operation::is_message(*op); }

  // "all_reduce seq 7 of group 'default_pg' on rank 0 of 2", "send to rank 1 tag 5 seq 2 of ..."
  std::string describe() const;
};

// Refuse a call before anything is sent, so the group stays usable. They throw ValueError for a
// wrong argument, TypeError for an argument of a wrong kind, and NotImplementedError for a call
// that is not supported.
[[noreturn]] void refuse_value(const Call& call, const std::string& why);
[[noreturn]] void refuse_type(const Call& call, const std::string& why);
[[noreturn]] void refuse_unsupported(const Call& call, const std::string& why);

}  // namespace torch_ucc
