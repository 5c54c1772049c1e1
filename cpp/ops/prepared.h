// A c10d call, checked and turned into one operation of UCC or into messages. Everything that can
// be wrong locally is refused here, by throwing before anything is sent.
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
  c10::SmallVector<at::Tensor, 2> buffers;   // of the operation: what the network may read and write until it is done
  c10::SmallVector<at::Tensor, 2> callers;   // of the caller: what is copied from and to within the lease
  std::vector<std::function<void()>> loads;  // bring what is sent from the caller's tensors to the buffers
  std::function<void()> store;               // brings the result from the buffers to the caller's tensors; empty if it is there

  // Adds a tensor to one of the two; one that is the last there already is not held twice.
  static void keep(c10::SmallVector<at::Tensor, 2>& held, at::Tensor tensor) {
    if (held.empty() || !held.back().is_same(tensor)) {
      held.push_back(std::move(tensor));
    }
  }

  // Once the caller has its memory back.
  void let_go() {
    callers.clear();
    loads.clear();
    store = nullptr;
  }

  // Once the caller's tensors hold what is to be sent, before anything is. A second call does
  // nothing.
  void fill() {
    for (const auto& load : std::exchange(loads, {})) {
      load();
    }
  }
};

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;

struct Prepared : Held {
  Path path = Path::nothing;

  ucc_coll_args_t args{};
  Pieces pieces;

  std::vector<Message> messages;
  NextRound next_round;  // empty if there is one round only

  // UCC is given bounce buffers in place of this memory of the caller.
  void shield(const Tensors& sources, const Tensors& destinations);
  // The operation reads all of what it sends when it begins, and writes its result when it ends: it
  // shares memory with another one that begins and ends with it.
  void isolate();
  // UCC may see the tensors: they are stand-ins, which belong to the operation. As long as it need
  // not gather them from parts.
  void see_through();

  std::int64_t root = -1;           // where there is one
  std::vector<at::Tensor> inputs;   // for profiles, where they are not the outputs
  std::vector<at::Tensor> outputs;  // what Work::result() and the future hold
  // What becomes of the outputs. The inputs are only read.
  bool reads_outputs = false;
  bool writes_outputs = true;

 private:
  bool whole_sides_ = false;  // each side is one tensor, as `args` have it
};

// All but messages: where `call` says of which memory of a device the tensors are, everything is
// queued on the calling thread's current stream, and `loads` and `store` on that of theirs; else
// they are on the host.

// Reductions.
// Whether these can be reduced in the memory of a device. The same on all ranks.
bool reduces_on_devices(at::TensorList tensors, const c10d::ReduceOp& op);
Prepared prepare_allreduce(const Call& call, Tensors& tensors, const c10d::ReduceOp& op, const Settings& settings);
// The tensor may be on a device: then `store` queues the copies of its result on the current
// stream, and waits for them.
Prepared prepare_sparse_allreduce(const Call& call, at::Tensor& tensor, const c10d::ReduceOp& op);
Prepared prepare_reduce(const Call& call, Tensors& tensors, const c10d::ReduceOp& op, std::int64_t root, std::int64_t root_tensor,
                        const Settings& settings);
Prepared prepare_reduce_scatter(const Call& call, Tensors& outputs, TensorLists& inputs, const c10d::ReduceOp& op,
                                const Settings& settings);
Prepared prepare_reduce_scatter_tensor(const Call& call, at::Tensor& output, at::Tensor& input, const c10d::ReduceOp& op,
                                       const Settings& settings);

// Data that is only moved, by UCC.
Prepared prepare_broadcast(const Call& call, Tensors& tensors, std::int64_t root, std::int64_t root_tensor,
                           const Settings& settings);
Prepared prepare_allgather(const Call& call, TensorLists& outputs, Tensors& inputs, const Settings& settings);
Prepared prepare_allgather_into(const Call& call, at::Tensor& output, at::Tensor& input, const Settings& settings);
Prepared prepare_barrier();

// Data that is only moved, in messages: from and to the tensors themselves, of any sizes, and the
// receiver finds out if a sender has another size in mind. Of `memory`, if that is said, is a
// tensor on a device, which must be plain; else it is on the host.
Prepared prepare_send(const Call& call, Tensors& tensors, std::optional<ucs_memory_type_t> memory = {});
Prepared prepare_recv(const Call& call, Tensors& tensors, std::optional<ucs_memory_type_t> memory = {});
Prepared prepare_gather(const Call& call, TensorLists& outputs, Tensors& inputs, std::int64_t root);
Prepared prepare_scatter(const Call& call, Tensors& outputs, TensorLists& inputs, std::int64_t root);
Prepared prepare_alltoall(const Call& call, Tensors& outputs, Tensors& inputs);
Prepared prepare_alltoall_single(const Call& call, at::Tensor& output, at::Tensor& input,
                                 const std::vector<std::int64_t>& output_splits, const std::vector<std::int64_t>& input_splits);

// For the above. A plain tensor that holds what the caller's holds when the operation begins: that
// one, if it is plain.
at::Tensor plain_source(Held& held, const at::Tensor& tensor);
// The same, always in memory of the operation.
at::Tensor copied_source(Held& held, const at::Tensor& tensor);
// The outputs of a call, or others in their place where some share memory: those are brought back
// in the order of the list.
struct Landings {
  explicit Landings(const Tensors& outputs);
  // The result that `prepared` stores in the tensors goes to the outputs.
  void bring_back(Prepared& prepared, const Tensors& outputs) const;

  Tensors tensors;
  bool are_others;
};
Payload payload_of(const at::Tensor& tensor, const char* reduce_op = nullptr);
// How many bytes of each rank's part, of `part` bytes, go in one piece, where a piece has a share
// of the parts of all ranks; 0: all in one. The same on all ranks, so it may not depend on how
// tensors lie in memory.
std::size_t share_of(std::size_t part, int ranks, const Settings& settings);
void check_root(const Call& call, std::int64_t root, std::int64_t root_tensor = 0);
void check_same_type(const Call& call, const at::Tensor& output, const at::Tensor& input);
// Calls `body(to, from)` for every step of an exchange of all with all: in each, every rank sends
// to one and receives from one.
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
