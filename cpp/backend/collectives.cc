// The collectives of c10d: each is checked and prepared, then launched.
#include <utility>

#include "backend/backend.h"
#include "bootstrap/monitored_barrier.h"
#include "ops/tensor_span.h"
#include "trace/site.h"
#include "work/errors.h"

namespace torch_ucc {
namespace {

using std::chrono::milliseconds;

// The lists of a coalesced call.
void check_pairs(const Call& call, std::size_t outputs, std::size_t inputs) {
  if (outputs != inputs || inputs == 0) {
    refuse_value(call, "there must be as many outputs as inputs, and at least one of each, not " + std::to_string(outputs) +
                           " outputs and " + std::to_string(inputs) + " inputs");
  }
}

}  // namespace

UccBackend::WorkPtr UccBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return serve(operation::kBroadcast, [&](Call& call) {
    Staging staging = moving(call, tensors);
    Prepared prepared = prepare_broadcast(call, rank_ == opts.rootRank ? staging.read(tensors) : staging.written(tensors),
                                          opts.rootRank, opts.rootTensor, context_->settings());
    return launch(std::move(call), std::move(prepared), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

UccBackend::WorkPtr UccBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (tensors.size() == 1 && tensors.front().defined() && tensors.front().layout() == at::kSparse) {
    return allreduce_sparse(tensors, opts);
  }
  return serve(operation::kAllReduce, [&](Call& call) {
    Staging staging = reducing(call, tensors, opts.reduceOp);
    Prepared prepared = prepare_allreduce(call, staging.updated(tensors), opts.reduceOp, context_->settings());
    return launch(std::move(call), std::move(prepared), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

UccBackend::WorkPtr UccBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return serve(operation::kAllReduceSparse, [&](Call& call) {
    Staging staging(call, lanes_);
    at::Tensor& tensor = only_tensor(call, tensors, "tensors");
    staging.behind(tensor.device());
    Prepared prepared = prepare_sparse_allreduce(call, tensor, opts.reduceOp);
    prepared.store = staging.on_the_way_back(std::move(prepared.store));
    return launch(std::move(call), std::move(prepared), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

UccBackend::WorkPtr UccBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  return serve(operation::kAllReduceCoalesced, [&](Call& call) {
    Staging staging = reducing(call, tensors, opts.reduceOp);
    check_pairs(call, tensors.size(), tensors.size());
    std::vector<Prepared> all;
    for (const at::Tensor& tensor : staging.updated(tensors)) {
      Tensors one{tensor};
      all.push_back(prepare_allreduce(call, one, opts.reduceOp, context_->settings()));
    }
    return launch_all(call, std::move(all), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

UccBackend::WorkPtr UccBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return serve(operation::kReduce, [&](Call& call) {
    Staging staging = reducing(call, tensors, opts.reduceOp);
    Prepared prepared = prepare_reduce(call, rank_ == opts.rootRank ? staging.updated(tensors) : staging.read(tensors),
                                       opts.reduceOp, opts.rootRank, opts.rootTensor, context_->settings());
    return launch(std::move(call), std::move(prepared), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

UccBackend::WorkPtr UccBackend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return serve(operation::kAllGather, [&](Call& call) {
    Staging staging = moving(call, inputs);
    Prepared prepared = prepare_allgather(call, staging.written(outputs), staging.read(inputs), context_->settings());
    return launch(std::move(call), std::move(prepared), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

UccBackend::WorkPtr UccBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  return serve(operation::kAllGatherInto, [&](Call& call) {
    Staging staging = moving(call, input);
    Prepared prepared = prepare_allgather_into(call, staging.written(output), staging.read(input), context_->settings());
    return launch(std::move(call), std::move(prepared), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

// outputs[rank][i] is where the i-th input of that rank goes.
UccBackend::WorkPtr UccBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return serve(operation::kAllGatherCoalesced, [&](Call& call) {
    Staging staging = moving(call, inputs);
    if (outputs.size() != static_cast<std::size_t>(size_)) {
      refuse_value(call, "there must be one list of outputs for each of the " + std::to_string(size_) + " ranks, not " +
                             std::to_string(outputs.size()) + " lists");
    }
    for (const Tensors& of_rank : outputs) {
      check_pairs(call, of_rank.size(), inputs.size());
    }
    const Tensors& sent = staging.read(inputs);
    const TensorLists& received = staging.written(outputs);
    std::vector<Prepared> all;
    for (std::size_t i = 0; i < sent.size(); ++i) {
      TensorLists parts(1);
      for (const Tensors& of_rank : received) {
        parts.front().push_back(of_rank[i]);
      }
      Tensors one{sent[i]};
      all.push_back(prepare_allgather(call, parts, one, context_->settings()));
    }
    return launch_all(call, std::move(all), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

UccBackend::WorkPtr UccBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                const c10d::AllgatherOptions& opts) {
  return serve(operation::kAllGatherIntoCoalesced, [&](Call& call) {
    Staging staging = moving(call, inputs);
    check_pairs(call, outputs.size(), inputs.size());
    std::vector<Prepared> all;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      all.push_back(prepare_allgather_into(call, staging.written(outputs[i]), staging.read(inputs[i]), context_->settings()));
    }
    return launch_all(call, std::move(all), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

UccBackend::WorkPtr UccBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  return serve(operation::kGather, [&](Call& call) {
    Staging staging(call, lanes_);
    Prepared prepared = prepare_gather(call, staging.written(outputs), staging.read(inputs), opts.rootRank);
    return launch(std::move(call), std::move(prepared), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

#if TUCC_TORCH_HAS_RECONFIGURE
UccBackend::WorkPtr UccBackend::gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts) {
  return serve(operation::kGatherSingle, [&](Call& call) {
    Staging staging(call, lanes_);
    at::Tensor& whole = rank_ == opts.rootRank ? staging.written(output) : output;
    Prepared prepared = prepare_gather_single(call, whole, staging.read(input), opts.rootRank);
    return launch(std::move(call), std::move(prepared), std::move(staging), opts.timeout, opts.asyncOp);
  });
}
#endif

UccBackend::WorkPtr UccBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) {
  return serve(operation::kScatter, [&](Call& call) {
    Staging staging(call, lanes_);
    Prepared prepared = prepare_scatter(call, staging.written(outputs), staging.read(inputs), opts.rootRank);
    return launch(std::move(call), std::move(prepared), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

UccBackend::WorkPtr UccBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) {
  return serve(operation::kReduceScatter, [&](Call& call) {
    Staging staging = reducing(call, outputs, opts.reduceOp);
    Prepared prepared =
        prepare_reduce_scatter(call, staging.written(outputs), staging.read(inputs), opts.reduceOp, context_->settings());
    return launch(std::move(call), std::move(prepared), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

UccBackend::WorkPtr UccBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& opts) {
  return serve(operation::kReduceScatterTensor, [&](Call& call) {
    Staging staging = reducing(call, output, opts.reduceOp);
    Prepared prepared =
        prepare_reduce_scatter_tensor(call, staging.written(output), staging.read(input), opts.reduceOp, context_->settings());
    return launch(std::move(call), std::move(prepared), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

UccBackend::WorkPtr UccBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                const c10d::ReduceScatterOptions& opts) {
  return serve(operation::kReduceScatterTensorCoalesced, [&](Call& call) {
    Staging staging = reducing(call, outputs, opts.reduceOp);
    check_pairs(call, outputs.size(), inputs.size());
    std::vector<Prepared> all;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      all.push_back(prepare_reduce_scatter_tensor(call, staging.written(outputs[i]), staging.read(inputs[i]), opts.reduceOp,
                                                  context_->settings()));
    }
    return launch_all(call, std::move(all), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

UccBackend::WorkPtr UccBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                                              std::vector<std::int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  return serve(operation::kAllToAllSingle, [&](Call& call) {
    Staging staging(call, lanes_);
    Prepared prepared = prepare_alltoall_single(call, staging.written(output), staging.read(input), output_splits, input_splits);
    return launch(std::move(call), std::move(prepared), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

UccBackend::WorkPtr UccBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  return serve(operation::kAllToAll, [&](Call& call) {
    Staging staging(call, lanes_);
    Prepared prepared = prepare_alltoall(call, staging.written(outputs), staging.read(inputs));
    return launch(std::move(call), std::move(prepared), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

UccBackend::WorkPtr UccBackend::barrier(const c10d::BarrierOptions& opts) {
  return serve(operation::kBarrier, [&](Call& call) {
    Staging staging(call, lanes_);
    // c10d passes on only `device_ids` of what the caller says about the device.
    const std::optional<c10::DeviceType> accelerator = at::getAccelerator();
    if (accelerator && !opts.device_ids.empty()) {
      staging.behind(c10::Device(*accelerator, static_cast<c10::DeviceIndex>(opts.device_ids.front())));
    }
    Prepared prepared = prepare_barrier(call, context_->settings());
    return launch(std::move(call), std::move(prepared), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

void UccBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  refuse_forked_child("monitored_barrier of group '" + info_->name + "'");
  const bool own = opts.timeout != c10d::kUnsetTimeout;
  // Earlier groups may have used the same store under the same name.
  const std::string name = context_->key_prefix() + "/monitored_barrier/" + std::to_string(membership_.team->id());
  // The barrier is used after failures, too. So it gives up only if the group was shut down or a
  // rank has ended.
  const MonitoredBarrier barrier{
      *spec_.store, name, rank_, size_, monitored_barriers_.fetch_add(1) + 1, [this] {
        if (closed_.load(std::memory_order_acquire)) {
          throw StatusError(Status(StatusCode::closed, "the group was shut down during monitored_barrier"));
        }
        if (const FailureDomain& domain = membership_.team->domain(); domain.has_lost()) {
          throw StatusError(domain.losses().front().reason);
        }
      }};
  trace::CallRecord event;
  event.op = operation::kMonitoredBarrier.name;
  event.seq = monitored_barriers_.load();
  event.group = home_->group;
  event.site = trace::site_of_caller();
  event.route = trace::Route::store;
  event.issued_ns = trace::nanoseconds(Clock::now());
  counters_of(operation::kMonitoredBarrier, event.route).called(0);
  const trace::Recording recording = trace::recorder().begin(event);
  for_user([&] {
    try {
      wait_for_all(barrier, own ? opts.timeout : milliseconds(timeout_ms_.load()), wait_all_ranks);
      recording.ended(StatusCode::ok);
    } catch (const StatusError& error) {
      recording.ended(error.status().code());
      throw;
    }
  });
}

}  // namespace torch_ucc
