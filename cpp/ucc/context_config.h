// The configuration of a UCC context: the environment, overridden by the options of the caller.
#pragma once

#include <ucc/api/ucc.h>

#include <string>

#include "base/settings.h"
#include "base/unique_handle.h"

namespace torch_ucc {

using UccContextConfig = UniqueHandle<ucc_context_config_h, ucc_context_config_release>;

// Initialises UCC if necessary. Options are named as in the environment, without UCC_: NET_DEVICES
// is an option of the context, TL_UCP_TUNE an option of its component tl/ucp. Throws StatusError
// that names an option which is not one of a context. UCC reads its other options once for the
// process.
UccContextConfig read_ucc_context_config(const NamedValues& options);

// Returns `ucx` with a TLS that leaves out cma and knem, whether `ucx` or the environment named the
// transports. With these two, a process reads the memory of another process. If a rank is killed, a
// read from it fails, and UCC goes on with what was in the buffer. A survivor then passes wrong
// data on to other ranks, and no rank gets an error. Through shared memory the data does not
// arrive, and the operation fails.
NamedValues without_reads(NamedValues ucx);

// Returns the transports that `tls` names, without cma and knem. `tls` has the syntax of UCX_TLS;
// an empty `tls` names all transports.
std::string tls_without_reads(const std::string& tls);

}  // namespace torch_ucc
