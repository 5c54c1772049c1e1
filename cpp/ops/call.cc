#include "ops/call.h"

namespace torch_ucc {

std::string Call::describe() const {
  std::string text = op->name;
  if (op->type == c10d::OpType::SEND || op->type == c10d::OpType::RECV) {
    text += (op->type == c10d::OpType::SEND ? " to rank " : " from rank ") + std::to_string(peer);
  }
  if (is_message()) {
    text += " tag " + std::to_string(tag);
  }
  return text + " seq " + std::to_string(seq) + " of group '" + group->name + "' on rank " + std::to_string(group->rank) +
         " of " + std::to_string(group->size);
}

void refuse_value(const Call& call, const std::string& why) { C10_THROW_ERROR(ValueError, call.describe() + ": " + why); }

void refuse_type(const Call& call, const std::string& why) { C10_THROW_ERROR(TypeError, call.describe() + ": " + why); }

void refuse_unsupported(const Call& call, const std::string& why) {
  C10_THROW_ERROR(NotImplementedError, call.describe() + ": " + why);
}

}  // namespace torch_ucc
