#include "backend/observe.h"

#include <algorithm>
#include <exception>
#include <string>
#include <tuple>
#include <utility>

namespace torch_ucc {

std::int64_t elements_in(const Tensors& tensors) {
  std::int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) {
    elements += tensor.numel();
  }
  return elements;
}

void tell_profiler(const Call& call, const Prepared& prepared, std::int64_t first, std::int64_t stride) {
  const auto seq = std::make_tuple(static_cast<std::int64_t>(call.seq), call.is_message());
  const auto group = std::make_tuple(call.group->name, std::string("undefined"));
  const Tensors& inputs = prepared.inputs.empty() ? prepared.outputs : prepared.inputs;
  const at::ScalarType dtype =
      prepared.payload.dtype == at::ScalarType::Undefined ? at::ScalarType::Byte : prepared.payload.dtype;
  RECORD_PARAM_COMMS_DATA(seq, group, inputs, prepared.outputs, call.peer >= 0 ? call.peer : call.group->rank, call.op->name,
                          elements_in(inputs), elements_in(prepared.outputs), dtype, std::vector<std::int64_t>(),
                          std::vector<std::int64_t>(), first, stride, call.group->size);
}

void check_for_nans(const Call& call, const Prepared& prepared) {
  const bool receives =
      call.op->type == c10d::OpType::RECV || call.op->type == c10d::OpType::RECVANYSOURCE ||
      ((call.op->type == c10d::OpType::BROADCAST || call.op->type == c10d::OpType::SCATTER) && prepared.root != call.group->rank);
  const Tensors& mine = prepared.inputs.empty() ? prepared.outputs : prepared.inputs;
  for (std::size_t i = 0; !receives && i < mine.size(); ++i) {
    const at::Tensor& tensor = mine[i];
    if (!tensor.is_floating_point() && !tensor.is_complex()) {
      continue;
    }
    const at::Tensor values = tensor.is_sparse() ? tensor.coalesce().values() : tensor;
    // float8 has no isnan() of its own
    if (at::isnan(values.is_complex() ? values : values.to(at::kFloat)).any().item<bool>()) {
      refuse_value(call, "input tensor " + std::to_string(i) + " of this rank has a NaN (TORCH_UCC_NAN_CHECK=1)");
    }
  }
}

void CompletionHook::expect() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++pending_;
}

void CompletionHook::run(const std::shared_ptr<c10d::WorkInfo>& info) {
  try {
    function_(info);
  } catch (const std::exception& error) {
    TORCH_WARN("the completion hook of a ucc group raised an error: ", error.what());
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  --pending_;
  told_.notify_all();
}

bool CompletionHook::wait(Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  return told_.wait_for(lock, std::min<Clock::duration>(deadline.left(), std::chrono::hours(24)),
                        [this] { return pending_ == 0; });
}

void AbortHooks::add(std::int64_t id, Function function) {
  auto shared = std::make_shared<const Function>(std::move(function));
  const MutexLock lock(mutex_);
  functions_[id].swap(shared);  // the former one ends after the lock
}

void AbortHooks::remove(std::int64_t id) {
  Functions::node_type former;
  const MutexLock lock(mutex_);
  former = functions_.extract(id);
}

bool AbortHooks::empty() {
  const MutexLock lock(mutex_);
  return functions_.empty();
}

void AbortHooks::run() {
  Functions functions;
  {
    const MutexLock lock(mutex_);
    if (std::exchange(have_run_, true)) {
      return;
    }
    functions = functions_;
  }
  for (const auto& [id, function] : functions) {
    try {
      (*function)();
    } catch (const std::exception& error) {
      TORCH_WARN("an abort hook of a ucc group raised an error: ", error.what());
    }
  }
}

}  // namespace torch_ucc
