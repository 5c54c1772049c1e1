#include "ucc/memory.h"

#include <array>
#include <utility>

#include "ucc/coll_args.h"
#include "ucc/error_log.h"

namespace torch_ucc {
namespace {

constexpr std::array<std::pair<const char*, ucc_memory_type_t>, 3> kTypes{
    {{"host", UCC_MEMORY_TYPE_HOST}, {"cuda", UCC_MEMORY_TYPE_CUDA}, {"rocm", UCC_MEMORY_TYPE_ROCM}}};

}  // namespace

std::optional<ucc_memory_type_t> memory_type(const std::string& name) {
  for (const auto& [known, type] : kTypes) {
    if (name == known) {
      return type;
    }
  }
  return std::nullopt;
}

// When UCC prepares a collective that copies, it finds an executor for that memory, or refuses the
// collective.
bool computes_in(LoopToken& token, const UccTeam& alone, ucc_memory_type_t memory) {
  std::array<char, 2> never_read{};
  ucc_coll_args_t args = allgather_args(&never_read[0], &never_read[1], 1, 1, memory);
  const ErrorLog::Capture capture;
  ucc_coll_req_h request = nullptr;
  if (ucc_collective_init(&args, &request, alone.handle(token)) != UCC_OK) {
    return false;
  }
  ucc_collective_finalize(request);
  return true;
}

}  // namespace torch_ucc
