#include "ucc/context.h"

#include "ucc/error_log.h"
#include "ucc/library.h"
#include "ucc/status.h"

namespace torch_ucc {

void UccContext::create(LoopToken& token, Oob& oob, int ranks_on_host) {
  token.check();
  ucc_context_config_h config = nullptr;
  throw_if_error(from_ucc(ucc_context_config_read(ucc_library(), nullptr, &config), "ucc_context_config_read"));
  // With the default UCC looks at the network on every 1000th call only while it has no task: a driver that sleeps between
  // calls would keep a peer waiting for a second.
  ucc_status_t status = ucc_context_config_modify(config, nullptr, "THROTTLE_PROGRESS", "0");
  if (status == UCC_OK) {
    status = ucc_context_config_modify(config, nullptr, "ESTIMATED_NUM_PPN", std::to_string(ranks_on_host).c_str());
  }
  ucc_context_params_t params{};
  params.mask = UCC_CONTEXT_PARAM_FIELD_OOB;
  params.oob = oob.params();
  if (status == UCC_OK) {
    status = ucc_context_create(ucc_library(), &params, config, &handle_);
  }
  ucc_context_config_release(config);
  if (status != UCC_OK) {
    handle_ = nullptr;
    throw_if_error(oob.failure());  // the reason, if the exchange failed
    throw_if_error(from_ucc(status, "ucc_context_create"));
  }
}

void UccContext::destroy(LoopToken& token) {
  token.check();
  if (handle_ != nullptr) {
    ucc_context_destroy(handle_);
    handle_ = nullptr;
  }
}

Status UccContext::progress(LoopToken& token) {
  token.check();
  const ErrorLog::Scope listening;
  const ucc_status_t status = ucc_context_progress(handle_);
  if (status >= UCC_OK) {
    return {};
  }
  Status failure = from_ucc(status, "ucc_context_progress");
  ErrorLog::add(failure.message());
  return failure;
}

}  // namespace torch_ucc
