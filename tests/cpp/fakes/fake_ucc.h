// UCC as a test program sees it: functions in place of those of the library, which write down what
// they were told. No test of the program starts UCC.
#pragma once

#include <ucc/api/ucc.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

namespace torch_ucc {

struct FakeUcc {
  std::vector<ucc_coll_args_t> initialised;  // by piece, of all collectives
  std::deque<ucc_coll_req_t> requests;
  std::size_t posted = 0;
  std::vector<std::size_t> finalised;  // pieces
  std::function<void(std::size_t piece)> on_init{};

  ucc_status_t init_says = UCC_OK;
  ucc_status_t post_says = UCC_OK;
  ucc_status_t test_says = UCC_OK;  // of a team

  void end(std::size_t piece, ucc_status_t status = UCC_OK) { requests.at(piece).status = status; }
  std::size_t in_flight() const { return posted - finalised.size(); }
};

extern FakeUcc ucc;  // of the test that runs

}  // namespace torch_ucc
