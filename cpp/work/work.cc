#include "work/work.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "trace/dumper.h"
#include "work/c10d_log.h"
#include "work/errors.h"

namespace torch_ucc {
namespace {

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && !tensor.device().is_cpu()) {
      devices.push_back(tensor.device());  // the future takes each once
    }
  }
  return devices;
}

// A sparse result was allocated on the stream of the copies back. Its memory would be reused there
// while other streams still read it.
void use_on_current_stream(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_sparse() || tensor.device().is_cpu()) {
    return;
  }
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  for (const at::Tensor& part : {tensor._indices(), tensor._values()}) {
    device.recordDataPtrOnStream(part.storage().data_ptr(), device.getStream(tensor.device()));
  }
}

std::optional<std::vector<at::Tensor>> shown(const UccWork::Parts& parts) {
  if (parts.title == nullptr) {
    return std::nullopt;
  }
  return parts.inputs.empty() ? parts.outputs : parts.inputs;
}

[[noreturn]] void throw_timed_out(const Op& op, std::chrono::milliseconds timeout) {
  throw_for_user(Status(StatusCode::timeout, "wait(" + std::to_string(timeout.count()) + " ms) timed out for " + op.describe() +
                                                 "; the operation goes on and can be waited for again"));
}

Status parents_work(const Op& op) {
  return Status(StatusCode::closed,
                op.describe() + ": this process was forked from the process that called it, and cannot wait for it");
}

UccWork::Parts without_inputs(UccWork::Parts&& parts) {
  parts.inputs.clear();
  return std::move(parts);
}

}  // namespace

UccWork::UccWork(std::shared_ptr<WorkHome> home, int rank, Parts&& parts)
    : Work(rank, parts.type, parts.title, shown(parts)), home_(std::move(home)), parts_(without_inputs(std::move(parts))) {
  if (!recordFunctionEndCallback_) {
    return;  // no profiler runs
  }
  if (parts_.op == nullptr) {
    recordFunctionEndCallback_();
  } else {
    parts_.op->completion().on_done(recordFunctionEndCallback_);
  }
}

bool UccWork::isCompleted() {
  if (parts_.is_parents()) {
    return true;  // exception() says why; a forked child cannot wait for it
  }
  if (parts_.ended() || home_->engine.settled(*parts_.op)) {
    return std::all_of(parts_.fences.begin(), parts_.fences.end(), [](const auto& fence) { return fence->passed(); });
  }
  // A caller that only calls isCompleted() must see the end, too
  home_->engine.drive_in_background(*parts_.op);
  return false;
}

bool UccWork::isSuccess() const { return !parts_.is_parents() && (!parts_.ended() || parts_.ended_well()); }

std::exception_ptr UccWork::exception() const {
  if (parts_.is_parents()) {
    return exception_for_user(parents_work(*parts_.op));
  }
  return isSuccess() ? nullptr : exception_for_user(parts_.op->completion().status());
}

std::vector<at::Tensor> UccWork::result() { return parts_.outputs; }

void UccWork::synchronize() {
  if (parts_.ended_well()) {
    parts_.synchronize();
  }
}

int UccWork::sourceRank() const {
  const Op* const receive = parts_.part ? parts_.part.get() : parts_.op.get();
  return receive == nullptr || !parts_.ended() ? -1 : receive->source();
}

float UccWork::getDuration() const {
  if (parts_.op == nullptr) {
    return 0;
  }
  const Op& op = parts_.part ? *parts_.part : *parts_.op;
  const std::optional<trace::Event> event = op.recording().event();
  if (!event || event->ended_ns == 0) {
    throw_for_user(Status(StatusCode::invalid,
                          "the duration of " + op.describe() +
                              (event ? " is not known before its end" : " is not in the flight recorder, or not any more")));
  }
  const std::int64_t from = event->posted_ns == 0 ? event->issued_ns : event->posted_ns;
  return static_cast<float>(event->ended_ns - from) / 1e6F;
}

bool UccWork::wait(std::chrono::milliseconds timeout) {
  parts_.wait(*home_, timeout);
  return true;
}

void UccWork::Parts::wait_for_fences() const {
  for (const auto& fence : fences) {
    if (fence->raised()) {
      fence->block_current_stream();
    }
  }
}

void UccWork::Parts::synchronize() const {
  wait_for_fences();
  std::for_each(outputs.begin(), outputs.end(), use_on_current_stream);
}

void UccWork::Parts::drive(const WorkHome& home, Deadline deadline) const {
  if (ended()) {
    return;
  }
  const Clock::time_point start = Clock::now();
  op->record_wait(start);
  try {
    home.engine.wait(*op, deadline, check_interrupt);
  } catch (...) {
    interrupted();
    throw;
  }
  counters->waited(Clock::now() - start);
}

void UccWork::Parts::interrupted() const {
  if (is_synchronous) {
    op->take_back(Op::After::goes_on);
    wait_for_fences();  // the caller's next work on the tensors must come after the queued copies
  }
}

void UccWork::Parts::post_and_drive(const WorkHome& home) const {
  const Clock::time_point start = Clock::now();
  op->record_wait(start);
  try {
    home.engine.post_and_wait(op, Deadline(), check_interrupt);
  } catch (...) {
    interrupted();
    throw;
  }
  counters->waited(Clock::now() - start);
}

void UccWork::Parts::wait(const WorkHome& home, std::chrono::milliseconds timeout) const {
  if (op == nullptr) {
    return;
  }
  if (is_parents()) {
    throw_for_user(parents_work(*op));
  }
  if (!op->posted() && !ended()) {
    throw_for_user(Status(StatusCode::invalid, "wait() for " + op->describe() +
                                                   ", which has not begun: leave the coalescing manager (end_coalescing) first"));
  }
  const Deadline deadline = timeout == kNoTimeout ? Deadline() : Deadline::after(timeout);
  drive(home, deadline);
  if (!ended()) {
    throw_timed_out(*op, timeout);
  }
  if (const Status& status = op->completion().status(); !status.ok()) {
    wait_for_fences();  // copies may have been queued before the operation failed
    trace::recorder().note_failure(home.group, status.message());
    log_failure(home.group, *op, status);
    trace::request_dump(trace::name(status.code()));
    trace::flush_dump();
    throw_for_user(status);
  }
  synchronize();
  if ((timeout != kNoTimeout || home.blocking_wait) &&
      !std::all_of(fences.begin(), fences.end(), [&](const auto& fence) { return fence->wait(deadline); })) {
    throw_timed_out(*op, timeout);
  }
}

c10::intrusive_ptr<c10::ivalue::Future> UccWork::getFuture() {
  const std::lock_guard<std::mutex> lock(future_mutex_);
  if (future_) {
    return future_;
  }
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices_of(parts_.outputs));
  if (parts_.op == nullptr) {
    future_->markCompleted(c10::IValue(parts_.outputs));
    return future_;
  }
  if (parts_.is_parents()) {
    future_->setError(exception_for_user(parents_work(*parts_.op)));
    return future_;
  }
  auto end = [future = future_, op = parts_.op, outputs = parts_.outputs, fences = parts_.fences] {
    const Status& status = op->completion().status();
    if (status.ok()) {
      std::vector<c10::Stream> streams;
      streams.reserve(fences.size());
      for (const auto& fence : fences) {
        streams.push_back(fence->stream());
      }
      // A stream that waits for the future waits for these streams
      const c10::MultiStreamGuard behind_them(streams);
      future->markCompleted(c10::IValue(outputs));
    } else {
      future->setError(exception_for_user(status));
    }
  };
  if (parts_.op->completion().done()) {
    end();
    return future_;
  }
  parts_.op->completion().on_done([home = home_, end = std::move(end)]() mutable { home->delivery.run(std::move(end)); });
  home_->engine.drive_in_background(*parts_.op);
  return future_;
}

}  // namespace torch_ucc
