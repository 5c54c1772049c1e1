#include "ucx/flush_worker.h"

#include "ucx/status.h"

namespace torch_ucc {

Status FlushWorker::start(LoopToken& token) {
  ucp_request_param_t param{};
  request_ = ucp_worker_flush_nbx(worker_.handle(token), &param);
  if (UCS_PTR_IS_PTR(request_)) {
    worker_.count_posted(token);
  }
  return {};
}

Op::State FlushWorker::poll(LoopToken& token) {
  token.check();
  if (request_ == nullptr) {
    return State::ended;
  }
  if (UCS_PTR_IS_ERR(request_)) {
    status_ = from_ucx(UCS_PTR_STATUS(request_), "ucp_worker_flush_nbx");
    return State::ended;
  }
  const ucs_status_t status = ucp_request_check_status(request_);
  if (status == UCS_INPROGRESS) {
    return State::in_flight;
  }
  ucp_request_free(request_);
  worker_.count_ended();
  status_ = from_ucx(status, "ucp_worker_flush_nbx");
  return State::ended;
}

}  // namespace torch_ucc
