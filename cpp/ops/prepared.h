// A c10d call, checked and turned into one operation of UCC or into messages. Everything that can be wrong locally is refused
// here, by throwing before anything is sent.
#pragma once

#include <ucc/api/ucc.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "compat/torch_compat.h"
#include "ops/call.h"
#include "ucc/collective.h"
#include "ucx/messages.h"

namespace torch_ucc {

// The shape of what is sent, for messages.
struct Payload {
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::int64_t elements = 0;
  const char* reduce_op = nullptr;

  std::string describe() const;  // "float32[1024] SUM"
};

enum class Path : unsigned char {
  nothing,     // complete without a word to the peers: no element, or nobody to send to
  collective,  // one of UCC
  messages,    // our own, over UCX
};

// What an operation has until its end.
struct Held {
  Payload payload;
  std::vector<std::uint64_t> counts;  // what Prepared::args point into, where the ranks' parts differ in size
  std::vector<std::uint64_t> displacements;
  c10::SmallVector<at::Tensor, 2> buffers;  // what the network reads and writes, kept alive until it is done
  std::function<void()> load;               // brings what is sent from the caller's tensors to the buffers; empty if it is there
  std::function<void()> store;              // brings the result from the buffers to the caller's tensors; empty if it is there

  // Adds these to the buffers; one that is the last there already is not held twice.
  template <typename... Tensors>
  void keep(Tensors&&... tensors) {
    const auto keep_one = [this](auto&& tensor) {
      if (buffers.empty() || !buffers.back().is_same(tensor)) {
        buffers.push_back(std::forward<decltype(tensor)>(tensor));
      }
    };
    (keep_one(std::forward<Tensors>(tensors)), ...);
  }

  // To be called once the caller's tensors hold what they shall, before anything is sent. A second call does nothing.
  void fill() {
    if (load) {
      std::exchange(load, nullptr)();
    }
  }
};

struct Prepared : Held {
  Path path = Path::nothing;

  ucc_coll_args_t args{};
  Pieces pieces;

  std::vector<Message> messages;
  NextRound next_round;  // empty if there is one round only

  std::int64_t root = -1;           // where there is one
  std::vector<at::Tensor> inputs;   // for profiles, where they are not the outputs
  std::vector<at::Tensor> outputs;  // what Work::result() and the future hold
};

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;

// All but messages: where `call` says of which memory of a device the tensors are, everything is queued on the calling thread's
// current stream, and `load` and `store` on that of theirs; else they are on the host.

// Reductions.
// Whether these can be reduced in the memory of a device. The same on all ranks.
bool reduces_on_devices(const Tensors& tensors, const c10d::ReduceOp& op);
Prepared prepare_allreduce(const Call& call, Tensors& tensors, const c10d::ReduceOp& op, const Settings& settings);
// The tensor may be on a device: then `store` queues the copies of its result on the current stream, and waits for them.
Prepared prepare_sparse_allreduce(const Call& call, at::Tensor& tensor, const c10d::ReduceOp& op);
Prepared prepare_reduce(const Call& call, Tensors& tensors, const c10d::ReduceOp& op, std::int64_t root, std::int64_t root_tensor,
                        const Settings& settings);
Prepared prepare_reduce_scatter(const Call& call, Tensors& outputs, TensorLists& inputs, const c10d::ReduceOp& op,
                                const Settings& settings);
Prepared prepare_reduce_scatter_tensor(const Call& call, at::Tensor& output, at::Tensor& input, const c10d::ReduceOp& op,
                                       const Settings& settings);

// Data that is only moved, by UCC.
Prepared prepare_broadcast(const Call& call, Tensors& tensors, std::int64_t root, std::int64_t root_tensor);
Prepared prepare_allgather(const Call& call, TensorLists& outputs, Tensors& inputs, const Settings& settings);
Prepared prepare_allgather_into(const Call& call, at::Tensor& output, at::Tensor& input);
Prepared prepare_barrier();

// Data that is only moved, in messages: from and to the tensors themselves, of any sizes, and the receiver finds out if a
// sender has another size in mind. Of `memory`, if that is said, is a tensor on a device, which must be plain; else it is on the
// host.
Prepared prepare_send(const Call& call, Tensors& tensors, std::optional<ucs_memory_type_t> memory = {});
Prepared prepare_recv(const Call& call, Tensors& tensors, std::optional<ucs_memory_type_t> memory = {});
Prepared prepare_gather(const Call& call, TensorLists& outputs, Tensors& inputs, std::int64_t root);
Prepared prepare_scatter(const Call& call, Tensors& outputs, TensorLists& inputs, std::int64_t root);
Prepared prepare_alltoall(const Call& call, Tensors& outputs, Tensors& inputs);
Prepared prepare_alltoall_single(const Call& call, at::Tensor& output, at::Tensor& input,
                                 const std::vector<std::int64_t>& output_splits, const std::vector<std::int64_t>& input_splits);

// For the above.
Payload payload_of(const at::Tensor& tensor, const char* reduce_op = nullptr);
// How much of each rank's part, of `part` bytes, goes in one piece, if it is better cut than moved with `scratch` bytes of memory
// that is there for this operation only; else 0. The same on all ranks, so it may not depend on how tensors lie in memory.
std::size_t share_of(std::size_t part, int ranks, std::size_t scratch, const Settings& settings);
void check_root(const Call& call, std::int64_t root, std::int64_t root_tensor = 0);
void check_same_type(const Call& call, const at::Tensor& output, const at::Tensor& input);
// Calls `body(to, from)` for every step of an exchange of all with all: in each, every rank sends to one and receives from one.
template <typename Body>
void in_steps(const Call& call, const Body& body) {
  const int rank = call.group->rank;
  const int size = call.group->size;
  for (int step = 1; step < size; ++step) {
    body((rank + step) % size, (rank - step + size) % size);
  }
}
// The one list of a list of lists, with one tensor a rank.
Tensors& one_per_rank(const Call& call, TensorLists& lists, const char* what);

}  // namespace torch_ucc
