// What this library was built from: processes that talk to each other must have been built from the
// same sources.
#pragma once

namespace torch_ucc {

// The version, and a digest of the sources.
const char* build_id();

}  // namespace torch_ucc
