// The process's one UCC library.
#pragma once

#include <ucc/api/ucc.h>

#include <string>

namespace torch_ucc {

// Initialises UCC on first use. Any thread; the handle lives as long as the process. UCC is
// initialised only once, because a second ucc_init resets tables that running collectives use.
// Throws StatusError if the loaded library cannot be used.
ucc_lib_h ucc_library();

// Version of the library that was loaded, which may differ from the headers', e.g. "1.9.0".
std::string ucc_library_version();

}  // namespace torch_ucc
