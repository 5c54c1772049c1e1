#include "backend/backend.h"

#include <utility>

#include "ops/tensor_op.h"
#include "work/errors.h"

namespace torch_ucc {
namespace {

using c10d::OpType;

// A WorkHome that keeps the context alive as long as a Work is.
std::shared_ptr<WorkHome> home_in(const std::shared_ptr<CommContext>& context) {
  struct Home {
    std::shared_ptr<CommContext> context;
    WorkHome home;
  };
  auto owner = std::make_shared<Home>(Home{context, {context->engine(), context->delivery()}});
  return {owner, &owner->home};
}

// As torch's own backends name theirs.
const char* title_of(OpType type) {
  switch (type) {
    case OpType::ALLREDUCE:
      return "ucc:all_reduce";
    case OpType::BROADCAST:
      return "ucc:broadcast";
    case OpType::ALLGATHER:
      return "ucc:all_gather";
    case OpType::_ALLGATHER_BASE:
      return "ucc:_all_gather_base";
    case OpType::BARRIER:
      return "ucc:barrier";
    default:
      return nullptr;
  }
}

}  // namespace

UccBackend::UccBackend(const GroupSpec& group, const Settings& settings, c10::intrusive_ptr<Options> options)
    : Backend(group.rank, static_cast<int>(group.global_ranks.size())),
      options_(std::move(options)),
      info_(std::make_shared<GroupInfo>(GroupInfo{group.name, rank_, size_})),
      context_(CommContext::for_group(group, settings)),
      team_(context_->create_team(group)),
      home_(home_in(context_)),
      timeout_ms_(options_->timeout.count()) {
  init();
}

Call UccBackend::call(const char* op, OpType type) const {
  Call call{op, type, seq_.load(std::memory_order_relaxed) + 1, info_};
  if (CommContext::in_forked_child()) {
    throw_for_user(
        Status(StatusCode::closed, call.describe() + ": this process was forked from a member of the group, and is none itself"));
  }
  if (closed_.load(std::memory_order_acquire)) {
    throw_for_user(Status(StatusCode::closed, call.describe() + ": the group was shut down"));
  }
  if (context_->engine().failed()) {
    throw_for_user(
        Status(StatusCode::closed, call.describe() + ": the group had failed before: " + context_->engine().failure().message()));
  }
  return call;
}

c10::intrusive_ptr<c10d::Work> UccBackend::launch(Call call, Prepared prepared, std::chrono::milliseconds timeout,
                                                  bool async_op) {
  call.seq = seq_.fetch_add(1, std::memory_order_relaxed) + 1;
  const OpType type = call.type;
  const char* const title = title_of(type);
  const std::uint64_t seq = call.seq;
  std::vector<at::Tensor> outputs = std::move(prepared.outputs);
  const std::vector<at::Tensor> inputs = prepared.inputs.empty() ? outputs : std::move(prepared.inputs);
  std::shared_ptr<TensorOp> op;
  if (prepared.sends) {
    const bool own = timeout.count() > 0;
    op = std::make_shared<TensorOp>(team_, std::move(call), std::move(prepared));
    op->set_deadline(Deadline::after(own ? timeout : std::chrono::milliseconds(timeout_ms_.load(std::memory_order_relaxed))));
    context_->engine().post(op, async_op ? Follow::leaves : Follow::waits);
  }
  return c10::make_intrusive<UccWork>(home_, std::move(op), rank_, type, seq, title, inputs, std::move(outputs));
}

c10::intrusive_ptr<c10d::Work> UccBackend::broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& opts) {
  Call call = this->call("broadcast", OpType::BROADCAST);
  Prepared prepared = prepare_broadcast(call, tensors, opts.rootRank, opts.rootTensor);
  return launch(std::move(call), std::move(prepared), opts.timeout, opts.asyncOp);
}

c10::intrusive_ptr<c10d::Work> UccBackend::allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) {
  Call call = this->call("all_reduce", OpType::ALLREDUCE);
  Prepared prepared = prepare_allreduce(call, tensors, opts.reduceOp, context_->settings());
  return launch(std::move(call), std::move(prepared), opts.timeout, opts.asyncOp);
}

c10::intrusive_ptr<c10d::Work> UccBackend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                     std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions& opts) {
  Call call = this->call("all_gather", OpType::ALLGATHER);
  Prepared prepared = prepare_allgather(call, outputs, inputs);
  return launch(std::move(call), std::move(prepared), opts.timeout, opts.asyncOp);
}

c10::intrusive_ptr<c10d::Work> UccBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                           const c10d::AllgatherOptions& opts) {
  Call call = this->call("all_gather_into_tensor", OpType::_ALLGATHER_BASE);
  Prepared prepared = prepare_allgather_into(call, output, input);
  return launch(std::move(call), std::move(prepared), opts.timeout, opts.asyncOp);
}

c10::intrusive_ptr<c10d::Work> UccBackend::barrier(const c10d::BarrierOptions& opts) {
  return launch(call("barrier", OpType::BARRIER), prepare_barrier(), opts.timeout, opts.asyncOp);
}

c10d::ErrorType UccBackend::getError() {
  const Engine& engine = context_->engine();
  if (!engine.failed()) {
    return c10d::ErrorType::SUCCESS;
  }
  return engine.failure().code() == StatusCode::timeout ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::COMM_ERROR;
}

void UccBackend::shutdown() { close(context_->settings().close_timeout); }

void UccBackend::abort() { close(std::chrono::milliseconds(0)); }

void UccBackend::close(std::chrono::milliseconds drain) {
  if (!closed_.exchange(true, std::memory_order_acq_rel)) {
    context_->close_team(team_, info_->name, drain);
  }
}

}  // namespace torch_ucc
