// UCC's configuration for a context: the environment's, and what we are told on top.
#pragma once

#include <ucc/api/ucc.h>

#include <string>

#include "base/settings.h"
#include "base/unique_handle.h"

namespace torch_ucc {

using UccContextConfig = UniqueHandle<ucc_context_config_h, ucc_context_config_release>;

// Starts UCC if it was not. Options are named as in the environment, without UCC_: NET_DEVICES is
// one of the context, TL_UCP_TUNE one of its component tl/ucp. Throws StatusError that names an
// option which is none of a context: UCC reads others once for the process.
UccContextConfig read_ucc_context_config(const NamedValues& options);

// `ucx` with a TLS without cma and knem, whoever named the transports: by these one process reads the
// memory of another. Where a rank is killed, a read from it fails, and UCC goes on with what was in the
// buffer: a survivor then passes wrong data on to others, who hear of no error. Through shared memory
// the data does not come, and the operation fails.
NamedValues without_reads(NamedValues ucx);

// The transports that `tls` names, as UCX_TLS does, without cma and knem; empty names all.
std::string tls_without_reads(const std::string& tls);

}  // namespace torch_ucc
