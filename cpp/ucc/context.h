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
  // Leaks the UCC context unless destroy() was called, because destroy() waits for peers.
  ~UccContext() override = default;
  UccContext(const UccContext&) = delete;
  UccContext& operator=(const UccContext&) = delete;

  // Blocks until all processes of `oob` have called create() or the deadline of `oob` has passed.
  // Throws StatusError, or what check_interrupt() throws; the object is then empty again. `options`
  // are those of read_ucc_context_config(). `ucx` are options of UCX, named without UCX_, for the
  // worker that UCC makes.
  void create(LoopToken& token, Oob& oob, const NamedValues& options, const NamedValues& ucx);

  // All processes of the context must call destroy(), after all teams of the context were
  // destroyed. Blocks without a limit, because UCC flushes every endpoint and waits for the peers.
  // A caller that needs a limit calls destroy() in a thread that it can leave behind.
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
