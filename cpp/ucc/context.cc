#include "ucc/context.h"

#include <initializer_list>
#include <optional>
#include <string>

#include "base/environment.h"
#include "ucc/context_config.h"
#include "ucc/error_log.h"
#include "ucc/library.h"
#include "ucc/status.h"

namespace torch_ucc {

void UccContext::create(LoopToken& token, Oob& oob, const NamedValues& options, const NamedValues& ucx) {
  token.check();
  // By default, UCC polls the network only on every 1000th call while it has no task. A thread that
  // sleeps between its calls would keep a peer waiting for a second.
  NamedValues all{{"THROTTLE_PROGRESS", "0"}};
  all.insert(all.end(), options.begin(), options.end());
  const UccContextConfig config = read_ucc_context_config(all);
  ucc_context_params_t params{};
  params.mask = UCC_CONTEXT_PARAM_FIELD_OOB;
  params.oob = oob.params();
  ucc_lib_h const library = ucc_library();
  // UCC passes options to UCX only through the environment, and UCX reads the options of its
  // transports (such as TCP_RX_SEG_SIZE) only under UCX_. UCX has read them when UCC begins its
  // first exchange with the peers. The environment is restored at that moment, not later: another
  // thread may have to create another context first, for which a peer already waits.
  auto told =
      std::make_optional<TemporaryEnvironment>(std::initializer_list<std::string>{"UCC_UCX_", "UCX_"}, without_reads(ucx));
  oob.set_on_next_exchange([&told] { told.reset(); });
  const ucc_status_t status = ucc_context_create(library, &params, config.get(), &handle_);
  oob.set_on_next_exchange(nullptr);
  if (status != UCC_OK) {
    handle_ = nullptr;
    oob.rethrow_failure();
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
  if (handle_ == nullptr) {
    return {};
  }
  const ErrorLog::Capture capture;
  const ucc_status_t status = ucc_context_progress(handle_);
  if (status >= UCC_OK) {
    return {};
  }
  Status failure = from_ucc(status, "ucc_context_progress");
  ErrorLog::add(failure.message());
  return failure;
}

}  // namespace torch_ucc
