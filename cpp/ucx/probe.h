// Asks UCX which transports it chooses towards a peer.
#pragma once

#include <ucp/api/ucp.h>

#include <string>
#include <vector>

#include "base/settings.h"
#include "base/unique_handle.h"

namespace torch_ucc {

// UCC gives no access to its UCX worker. This class makes a worker of our own with the features,
// environment and options that UCC gives to its worker, so that UCX chooses the same transports. It
// sends nothing. A probe belongs to the thread that made it and shares nothing with an engine, so
// it needs no baton. Members throw StatusError.
class TransportProbe {
 public:
  explicit TransportProbe(const NamedValues& options);

  // The address that the peer passes to transports_to().
  std::string address() const;

  // The transports to that peer, such as {"sysv/memory", "cma/memory"}. `address` is that of a
  // probe which still exists.
  std::vector<std::string> transports_to(const std::string& address) const;

 private:
  UniqueHandle<ucp_context_h, ucp_cleanup> context_;
  UniqueHandle<ucp_worker_h, ucp_worker_destroy> worker_;
};

std::string ucx_library_version();

}  // namespace torch_ucc
