#include "fakes/fake_ucc.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace torch_ucc {

FakeUcc ucc;

namespace {

ucc_team_h const kTeam = reinterpret_cast<ucc_team_h>(&ucc);

}  // namespace
}  // namespace torch_ucc

using torch_ucc::kTeam;
using torch_ucc::ucc;

ucc_status_t ucc_team_create_post(ucc_context_h*, std::uint32_t, const ucc_team_params_t*, ucc_team_h* team) {
  *team = kTeam;
  return UCC_OK;
}

ucc_status_t ucc_team_create_test(ucc_team_h) { return ucc.test_says; }

ucc_status_t ucc_team_destroy(ucc_team_h) { return UCC_OK; }

ucc_status_t ucc_collective_init(ucc_coll_args_t* args, ucc_coll_req_h* request, ucc_team_h team) {
  EXPECT_EQ(team, kTeam);
  if (ucc.init_says == UCC_OK) {
    ucc.initialised.push_back(*args);
    *request = &ucc.requests.emplace_back(ucc_coll_req_t{UCC_OPERATION_INITIALIZED});
    if (ucc.on_init) {
      ucc.on_init(ucc.requests.size() - 1);
    }
  }
  return ucc.init_says;
}

ucc_status_t ucc_collective_post(ucc_coll_req_h request) {
  if (ucc.post_says == UCC_OK) {
    ++ucc.posted;
    request->status = UCC_INPROGRESS;
  }
  return ucc.post_says;
}

ucc_status_t ucc_collective_finalize(ucc_coll_req_h request) {
  for (std::size_t piece = 0; piece < ucc.requests.size(); ++piece) {
    if (&ucc.requests[piece] == request) {
      ucc.finalised.push_back(piece);
    }
  }
  return UCC_OK;
}
