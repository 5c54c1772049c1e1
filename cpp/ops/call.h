// Who calls what: the part of every error message that does not depend on what went wrong.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "compat/torch_compat.h"

namespace torch_ucc {

struct GroupInfo {
  std::string name;
  int rank = 0;
  int size = 1;
};

struct Call {
  const char* op = "";  // as the user of torch.distributed knows it
  c10d::OpType type = c10d::OpType::UNKNOWN;
  std::uint64_t seq = 0;  // counts the group's collectives from 1
  std::shared_ptr<const GroupInfo> group;

  // "all_reduce seq 7 of group 'default_pg' on rank 0 of 2"
  std::string describe() const;
};

// Refuses a call before anything was sent; the group stays usable.
// ValueError: an argument that is wrong; TypeError: one of the wrong kind; NotImplementedError: means nothing here.
[[noreturn]] void refuse_value(const Call& call, const std::string& why);
[[noreturn]] void refuse_type(const Call& call, const std::string& why);
[[noreturn]] void refuse_unsupported(const Call& call, const std::string& why);

}  // namespace torch_ucc
