// all_reduce of sparse tensors: each rank gets the indices and values of all ranks and adds them up
// in the order of the ranks. Tensors on a device are reduced on the host: the call waits for the
// device's stream, because it must know how many elements there are.
#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "base/status.h"
#include "ops/prepared.h"
#include "ops/reduce_rule.h"
#include "ops/tensor_span.h"

namespace torch_ucc {
namespace {

// What the ranks exchange first. Everything except the number of elements must be equal.
struct Header {
  static constexpr std::size_t kMaxDims = 12;

  std::int64_t elements = 0;
  std::int64_t dtype = 0;
  std::int64_t sparse_dims = 0;
  std::int64_t dims = 0;
  std::array<std::int64_t, kMaxDims> sizes{};

  bool fits(const Header& other) const {
    return dtype == other.dtype && sparse_dims == other.sparse_dims && dims == other.dims && sizes == other.sizes;
  }
};

struct SparseReduction {
  Call call;
  std::vector<std::int64_t> sizes;
  at::ScalarType type;
  ReduceRule rule;
  std::vector<Header> headers;  // by rank
  Tensors indices;
  Tensors values;

  static Message message(Message::Kind kind, int peer, void* data, std::size_t bytes) {
    Message message;
    message.kind = kind;
    message.peer = peer;
    message.data = data;
    message.bytes = bytes;
    message.is_callers = false;
    return message;
  }

  std::vector<Message> exchange_headers() {
    const auto own = static_cast<std::size_t>(call.group->rank);
    std::vector<Message> messages;
    in_steps(call, [&](int to, int from) {
      messages.push_back(message(Message::Kind::receive, from, &headers[static_cast<std::size_t>(from)], sizeof(Header)));
      messages.push_back(message(Message::Kind::send, to, &headers[own], sizeof(Header)));
    });
    return messages;
  }

  // Throws StatusError (invalid) if the ranks' tensors differ. It then throws on every rank.
  std::vector<Message> exchange_elements() {
    const auto own = static_cast<std::size_t>(call.group->rank);
    for (std::size_t rank = 0; rank < headers.size(); ++rank) {
      if (!headers[rank].fits(headers[own])) {
        throw StatusError(Status(StatusCode::invalid, "the tensor of rank " + std::to_string(rank) +
                                                          " has another shape, dtype or number of "
                                                          "sparse dimensions"));
      }
    }
    const c10::InferenceMode below_autograd(true);
    std::vector<Message> messages;
    in_steps(call, [&](int to, int from) {
      const auto f = static_cast<std::size_t>(from);
      std::vector<std::int64_t> shape = values[own].sizes().vec();
      shape[0] = headers[f].elements;
      indices[f] = at::empty({headers[f].sparse_dims, headers[f].elements}, indices[own].options());
      values[f] = at::empty(shape, values[own].options());
      for (Tensors* tensors : {&indices, &values}) {
        at::Tensor& received = (*tensors)[f];
        at::Tensor& mine = (*tensors)[own];
        messages.push_back(message(Message::Kind::receive, from, data_of(received), bytes_of(received)));
        messages.push_back(message(Message::Kind::send, to, data_of(mine), bytes_of(mine)));
      }
    });
    return messages;
  }

  // Copies what this rank gives.
  void load(const at::Tensor& tensor) {
    const c10::InferenceMode below_autograd(true);
    const auto own = static_cast<std::size_t>(call.group->rank);
    const at::Tensor mine = tensor.coalesce();
    const auto copied = [](const at::Tensor& part) {  // coalesce() may return the caller's own memory
      return part.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
    };
    headers[own].elements = mine._nnz();
    indices[own] = copied(mine._indices());
    values[own] = copied(mine._values());
  }

  // The copies must not be inference tensors, because the caller could not use those like other
  // tensors.
  void store(const at::Tensor& tensor) const {
    const at::Tensor result = sum();
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    tensor.copy_(result);
  }

  at::Tensor sum() const {
    const c10::InferenceMode below_autograd(true);
    const at::Tensor sum =
        at::_coalesced(at::_sparse_coo_tensor_unsafe(at::cat(indices, 1), at::cat(values, 0).to(rule.compute), sizes), false)
            .coalesce();
    at::Tensor result = sum.values();
    if (rule.divide) {
      result = result.is_floating_point() || result.is_complex() ? result / call.group->size
                                                                 : at::div(result, call.group->size, "trunc");
    }
    return at::_coalesced(at::_sparse_coo_tensor_unsafe(sum.indices(), result.to(type), sizes), true);
  }
};

}  // namespace

Prepared prepare_sparse_allreduce(const Call& call, at::Tensor& tensor, const c10d::ReduceOp& op) {
  const c10::Device device = tensor.device();
  if ((!device.is_cpu() && !at::isAccelerator(device.type())) || tensor.layout() != at::kSparse) {
    refuse_unsupported(call, "the tensor is " + c10::str(tensor.layout()) + " on " + device.str() +
                                 ": the only sparse tensors that can be reduced are COO tensors on the CPU or an accelerator; "
                                 "call .to_dense() first");
  }
  const auto rule = reduce_rule(tensor.scalar_type(), op);
  if (!rule || (op != c10d::ReduceOp::SUM && op != c10d::ReduceOp::AVG)) {
    refuse_unsupported(call, std::string("the reduce op ") + reduce_op_name(op) + " is not defined for a sparse tensor of " +
                                 dtype_name(tensor.scalar_type()) +
                                 ": only SUM and AVG treat elements that are not stored as zero");
  }
  if (static_cast<std::size_t>(tensor.dim()) > Header::kMaxDims) {
    refuse_unsupported(call, "the sparse tensor has more than " + std::to_string(Header::kMaxDims) + " dimensions");
  }
  const auto size = static_cast<std::size_t>(call.group->size);
  auto state = std::make_shared<SparseReduction>(
      SparseReduction{call, tensor.sizes().vec(), tensor.scalar_type(), *rule, {}, Tensors(size), Tensors(size)});
  state->headers.resize(size);
  Header& header = state->headers[static_cast<std::size_t>(call.group->rank)];
  header.dtype = static_cast<std::int64_t>(tensor.scalar_type());
  header.sparse_dims = tensor.sparse_dim();
  header.dims = tensor.dim();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), header.sizes.begin());

  Prepared prepared;
  prepared.payload = payload_of(tensor, reduce_op_name(op));
  prepared.outputs.push_back(tensor);
  prepared.reads_outputs = true;
  if (device.is_cpu()) {
    prepared.loads.emplace_back([state, tensor] { state->load(tensor); });
  } else {
    state->load(tensor);  // on the stream of the caller
  }
  prepared.messages = state->exchange_headers();
  prepared.path = prepared.messages.empty() ? Path::nothing : Path::messages;
  prepared.next_round = [state, done = false]() mutable {
    return std::exchange(done, true) ? std::vector<Message>() : state->exchange_elements();
  };
  prepared.store = [state, tensor] { state->store(tensor); };
  return prepared;
}

}  // namespace torch_ucc
