// Identifies the sources that this library was built from. All ranks of a job must have the same.
#pragma once

namespace torch_ucc {

// Returns the version and a digest of the sources.
const char* build_id();

}  // namespace torch_ucc
