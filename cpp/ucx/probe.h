// Which transports UCX chooses towards a peer, asked of UCX itself.
#pragma once

#include <ucp/api/ucp.h>

#include <string>
#include <vector>

#include "base/settings.h"
#include "base/unique_handle.h"

namespace torch_ucc {

// UCC does not show its worker. This is one of our own with the features, environment and options
// that UCC gives to its own, so that UCX decides alike; it sends nothing. It belongs to the thread
// that made it and shares nothing with an engine, so no baton is needed. Members throw StatusError.
class TransportProbe {
 public:
  explicit TransportProbe(const NamedValues& options);

  // For the peer's transports_to().
  std::string address() const;

  // Such as {"sysv/memory", "cma/memory"}. `address` is that of a probe which still exists.
  std::vector<std::string> transports_to(const std::string& address) const;

 private:
  UniqueHandle<ucp_context_h, ucp_cleanup> context_;
  UniqueHandle<ucp_worker_h, ucp_worker_destroy> worker_;
};

std::string ucx_library_version();

}  // namespace torch_ucc
