#include "base/build_id.h"

#include "base/build_digest.h"  // written as the library is built

namespace torch_ucc {

const char* build_id() { return TORCH_UCC_BUILD_ID; }

}  // namespace torch_ucc
