#include "ucc/team.h"

#include <utility>

#include "ucc/status.h"

namespace torch_ucc {

UccTeam::UccTeam(std::uint16_t id, std::vector<std::uint64_t> members, int rank, Bells bells,
                 std::shared_ptr<FailureDomain> domain)
    : id_(id), members_(std::move(members)), rank_(rank), bells_(std::move(bells)), domain_(std::move(domain)) {}

ucc_status_t UccTeam::create_post(LoopToken& token, UccContext& context) {
  ucc_team_params_t params{};
  params.mask = UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE | UCC_TEAM_PARAM_FIELD_EP_MAP | UCC_TEAM_PARAM_FIELD_ID;
  params.ep = static_cast<std::uint64_t>(rank_);
  params.ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG;
  params.ep_map.type = UCC_EP_MAP_ARRAY;
  params.ep_map.ep_num = members_.size();
  params.ep_map.array.map = members_.data();
  params.ep_map.array.elem_size = sizeof(members_[0]);
  params.id = id_;
  context_ = &context;
  ucc_context_h handle = context.handle(token);
  return ucc_team_create_post(&handle, 1, &params, &handle_);
}

ucc_status_t UccTeam::create_test(LoopToken& token) {
  token.check();
  return ucc_team_create_test(handle_);
}

void UccTeam::destroy(LoopToken& token) {
  token.check();
  if (handle_ != nullptr) {
    ucc_team_destroy(handle_);
    handle_ = nullptr;
  }
}

CreateTeam::CreateTeam(std::shared_ptr<UccTeam> team, UccContext& context, std::string name)
    : team_(std::move(team)), context_(context), name_(std::move(name)) {}

Status CreateTeam::start(LoopToken& token) {
  Status status = from_ucc(team_->create_post(token, context_), "ucc_team_create_post");
  if (status.ok()) {
    context_.count_posted(token);
  }
  return status;
}

Op::State CreateTeam::poll(LoopToken& token) {
  const ucc_status_t status = team_->create_test(token);
  if (status == UCC_INPROGRESS) {
    return State::in_flight;
  }
  context_.count_ended();
  status_ = from_ucc(status, describe());
  return State::ended;
}

}  // namespace torch_ucc
