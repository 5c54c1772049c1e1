// A c10d call, checked and turned into one operation of UCC or into messages. If this rank can see
// that a call is wrong, the function that prepares the call throws before anything is sent.
#pragma once

#include <ucc/api/ucc.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "compat/torch_compat.h"
#include "hosts/piece.h"
#include "messages/messages.h"
#include "ops/call.h"
#include "shm/movement.h"
#include "ucc/collective.h"

namespace torch_ucc {

// The type and size of the data, for errors and reports.
struct Payload {
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::int64_t elements = 0;
  const char* reduce_op = nullptr;

  std::string describe() const;  // "float32[1024] SUM"
};

enum class Path : unsigned char {
  nothing,     // nothing is sent: there are no elements, or no other ranks
  memory,      // one collective through shared memory
  collective,  // one UCC collective
  levels,      // through shared memory on each host, and by UCC between hosts
  messages,    // our own messages
};

// What an operation holds.
struct Held {
  Payload payload;
  // Prepared::args points into these two if the ranks' parts differ in size
  std::vector<std::uint64_t> counts;
  std::vector<std::uint64_t> displacements;
  // The network may read and write them until the operation is destroyed
  c10::SmallVector<at::Tensor, 2> buffers;
  c10::SmallVector<at::Tensor, 2> callers;  // copied from and to within the lease, until let_go()
  // Copy what is sent from the caller's tensors to the buffers
  std::vector<std::function<void()>> loads;
  // Copies the result from the buffers to the caller's tensors; may be empty
  std::function<void()> store;

  // Adds a tensor to `buffers` or `callers`, unless it is the last tensor there already.
  static void keep(c10::SmallVector<at::Tensor, 2>& held, at::Tensor tensor) {
    if (held.empty() || !held.back().is_same(tensor)) {
      held.push_back(std::move(tensor));
    }
  }

  // Drops what belongs to the caller. Called once the caller has its memory back.
  void let_go() {
    callers.clear();
    loads.clear();
    store = nullptr;
  }

  // Runs the loads. Called once the caller's tensors hold what is to be sent, and before anything
  // is sent. A second call does nothing.
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

  shm::Movement movement;   // through memory, or in levels
  hosts::UccReduction ucc;  // in levels

  std::vector<Message> messages;
  NextRound next_round;  // empty if there is one round only

  // Declares the caller's memory that is sent and received. UCC works in bounce buffers instead.
  void shield(const Tensors& sources, const Tensors& destinations);
  // Makes the operation read everything that it sends when it begins, and write its result when it
  // ends. For an operation that shares memory with another one that begins and ends with it.
  void isolate();
  // Makes the call a collective on one of the paths `memory` and `levels`. Its memory must be kept, see
  // keep_memory().
  void move(Path by, shm::Movement::Kind kind, std::int64_t root, shm::Parts sources, shm::Parts destinations);
  // Keeps a tensor, because the operation uses its memory. `is_buffer`: the tensor was made for the
  // operation. Otherwise it is one of the caller.
  void keep_memory(const at::Tensor& tensor, bool is_buffer);
  // Lets UCC work in the tensors without bounce buffers, since they are stand-ins, which belong to
  // the operation. Does nothing if one side has several tensors.
  void see_through();

  std::int64_t root = -1;           // -1: the call has no root
  std::vector<at::Tensor> inputs;   // empty if the call only works on its outputs
  std::vector<at::Tensor> outputs;  // what Work::result() and the future hold
  // Whether the call reads and writes its outputs. Inputs are only read.
  bool reads_outputs = false;
  bool writes_outputs = true;

 private:
  bool whole_sides_ = false;  // each side is one tensor at most, the one in `args`
};

// The path of a collective of `bytes` bytes, which is the same on all ranks: `memory`, `levels` or
// `collective`.
Path path_of(const Call& call, std::size_t bytes, const Settings& settings);
// Likewise, for an all_gather or a reduce_scatter, which can go in levels only if each host has as many ranks.
// `even`: whether all parts have one size, which it needs as well.
Path path_of_parts(const Call& call, std::size_t bytes, const Settings& settings, bool even = true);

// Functions that check a call and prepare it; see call.h for what they throw. The tensors are on
// the host, unless `call.device_memory` is set. Then the work on them is queued on the current
// stream of the thread that calls the function, or that runs `loads` or `store`. The functions that
// make messages are never given `call.device_memory`.

// Reductions.
// Whether `op` can reduce these tensors in device memory. The answer is the same on all ranks.
bool reduces_on_devices(at::TensorList tensors, const c10d::ReduceOp& op);
Prepared prepare_allreduce(const Call& call, Tensors& tensors, const c10d::ReduceOp& op, const Settings& settings);
// The tensor may be on a device. `store` then queues the copies of the result on the current stream
// and waits for them.
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
Prepared prepare_barrier(const Call& call, const Settings& settings);

// Data that is only moved, in messages. Tensors may have any sizes; a receive fails if the message
// has another size than the tensor. If `memory` is given, the tensor is in device memory of this
// type and must be plain. Else it is on the host.
Prepared prepare_send(const Call& call, Tensors& tensors, std::optional<MessageMemory> memory = {});
Prepared prepare_recv(const Call& call, Tensors& tensors, std::optional<MessageMemory> memory = {});
Prepared prepare_gather(const Call& call, TensorLists& outputs, Tensors& inputs, std::int64_t root);
// The output of the root takes the parts one behind the other; that of another rank is not used.
Prepared prepare_gather_single(const Call& call, at::Tensor& output, at::Tensor& input, std::int64_t root);
Prepared prepare_scatter(const Call& call, Tensors& outputs, TensorLists& inputs, std::int64_t root);
Prepared prepare_alltoall(const Call& call, Tensors& outputs, Tensors& inputs);
Prepared prepare_alltoall_single(const Call& call, at::Tensor& output, at::Tensor& input,
                                 const std::vector<std::int64_t>& output_splits, const std::vector<std::int64_t>& input_splits);

// Helpers of the functions above.
// The memory of a plain tensor, or of `ranks` equal parts of it, or of each of several tensors.
Part part_of(const at::Tensor& tensor);
shm::Parts whole(const at::Tensor& tensor);
shm::Parts equal_parts(const at::Tensor& tensor, int ranks);
shm::Parts each_of(const Tensors& tensors);
// Returns `tensor` if it is plain. Else returns a plain buffer, into which `tensor` is copied when
// the operation begins.
at::Tensor plain_source(Held& held, const at::Tensor& tensor);
// Returns a plain buffer, into which `tensor` is copied when the operation begins.
at::Tensor copied_source(Held& held, const at::Tensor& tensor);
// The tensors in which a call receives its results: its outputs, or new tensors if some of the
// outputs share memory. New tensors are copied to the outputs in the order of the list.
struct Landings {
  explicit Landings(const Tensors& outputs);
  // Sets the outputs of `prepared`. If `tensors` are new, its `store` also copies them to the
  // outputs.
  void bring_back(Prepared& prepared, const Tensors& outputs) const;

  Tensors tensors;
  bool are_others;
};
Payload payload_of(const at::Tensor& tensor, const char* reduce_op = nullptr);
// A piece has a share of the part of each rank. Returns the bytes of a share if each part has
// `part` bytes; 0: the operation is not cut. The result is the same on all ranks, so it may not
// depend on how tensors lie in memory.
std::size_t share_of(std::size_t part, int ranks, const Settings& settings);
void check_root(const Call& call, std::int64_t root, std::int64_t root_tensor = 0);
void check_same_type(const Call& call, const at::Tensor& output, const at::Tensor& input);
// Calls `body(to, from)` for each step of an exchange between all ranks. In a step, this rank sends
// to rank `to` and receives from rank `from`.
template <typename Body>
void in_steps(const Call& call, const Body& body) {
  const int rank = call.group->rank;
  const int size = call.group->size;
  for (int step = 1; step < size; ++step) {
    body((rank + step) % size, (rank - step + size) % size);
  }
}
// The only list in `lists`, which must hold one tensor for each rank. Refuses others; `what` names
// the argument.
Tensors& one_per_rank(const Call& call, TensorLists& lists, const char* what);

}  // namespace torch_ucc
