#include "ops/call.h"

namespace torch_ucc {

std::string Call::describe() const {
  return std::string(op) + " seq " + std::to_string(seq) + " of group '" + group->name + "' on rank " +
         std::to_string(group->rank) + " of " + std::to_string(group->size);
}

void refuse_value(const Call& call, const std::string& why) { C10_THROW_ERROR(ValueError, call.describe() + ": " + why); }

void refuse_type(const Call& call, const std::string& why) { C10_THROW_ERROR(TypeError, call.describe() + ": " + why); }

void refuse_unsupported(const Call& call, const std::string& why) {
  C10_THROW_ERROR(NotImplementedError, call.describe() + ": " + why);
}

}  // namespace torch_ucc
