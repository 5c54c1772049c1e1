// One UCC context: a worker, and the addresses of all processes that take part in it.
#pragma once

#include <ucc/api/ucc.h>

#include <string>

#include "base/settings.h"
#include "base/status.h"
#include "progress/loop_token.h"
#include "progress/pollable.h"
#include "ucc/oob.h"

namespace torch_ucc {

class UccContext : public CountingPollable {
 public:
  UccContext() = default;
  // Leaks the context unless destroy() was called: see there.
  ~UccContext() override = default;
  UccContext(const UccContext&) = delete;
  UccContext& operator=(const UccContext&) = delete;

  // Blocks until all processes of `oob` called it or the deadline of `oob` passed. Throws
  // StatusError; the object is then empty again. `options` as read_ucc_context_config() takes them;
  // `ucx` are UCX's for the worker that UCC makes, without UCX_.
  void create(LoopToken& token, Oob& oob, const NamedValues& options, const NamedValues& ucx);

  // Collective over the processes of the context, and unbounded: UCC flushes every endpoint and
  // waits for the peers. A caller that needs a bound calls it in a thread it can leave behind.
  // Every team on it must be gone.
  void destroy(LoopToken& token);

  Status progress(LoopToken& token) override;

  ucc_context_h handle(LoopToken& token) const {
    token.check();
    return handle_;
  }

 private:
  ucc_context_h handle_ = nullptr;
};

}  // namespace torch_ucc
