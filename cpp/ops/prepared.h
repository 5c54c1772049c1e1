// A c10d call, checked and turned into one UCC collective. Everything that can be wrong locally is refused here, by throwing
// before anything is sent.
#pragma once

#include <ucc/api/ucc.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "base/settings.h"
#include "compat/torch_compat.h"
#include "ops/call.h"
#include "ucc/collective.h"

namespace torch_ucc {

// The shape of what is sent, for messages.
struct Payload {
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::int64_t elements = 0;
  const char* reduce_op = nullptr;

  std::string describe() const;  // "float32[1024] SUM"
};

struct Prepared {
  bool sends = true;  // false: the call is complete without a word to the peers (no element, or nobody to send to)
  ucc_coll_args_t args{};
  Pieces pieces;
  Payload payload;
  std::vector<at::Tensor> buffers;  // what the network reads and writes, kept alive until it is done
  std::function<void()> store;      // brings the result from the buffers to the caller's tensors; empty if it is there
  std::vector<at::Tensor> inputs;   // for profiles, where they are not the outputs
  std::vector<at::Tensor> outputs;  // what Work::result() and the future hold
};

Prepared prepare_allreduce(const Call& call, std::vector<at::Tensor>& tensors, const c10d::ReduceOp& op,
                           const Settings& settings);
Prepared prepare_broadcast(const Call& call, std::vector<at::Tensor>& tensors, std::int64_t root, std::int64_t root_tensor);
Prepared prepare_allgather(const Call& call, std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs);
Prepared prepare_allgather_into(const Call& call, at::Tensor& output, at::Tensor& input);
Prepared prepare_barrier();

}  // namespace torch_ucc
