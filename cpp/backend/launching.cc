// Turns a prepared call into an operation and a Work.
#include <algorithm>
#include <utility>

#include "backend/backend.h"
#include "base/forked.h"
#include "ops/cross_check.h"
#include "ops/effects.h"
#include "ops/tensor_op.h"
#include "work/errors.h"

namespace torch_ucc {
namespace {

using std::chrono::milliseconds;

// Returns a function that says whether results are still on their way to a device; null if no
// device is involved.
EffectOrder::Lasts lasting(const std::vector<std::shared_ptr<const Fence>>& fences) {
  if (fences.empty()) {
    return nullptr;
  }
  return [fences] {
    try {
      return !std::all_of(fences.begin(), fences.end(), [](const auto& fence) { return fence->passed(); });
    } catch (const std::exception&) {  // the device is broken, and nothing comes any more
      return false;
    }
  };
}

// Fills the buffers of a call whose tensors are on the host. If the call sends nothing, also stores
// its result.
void begin_on_host(Prepared& prepared) {
  prepared.fill();
  if (prepared.path == Path::nothing && prepared.store) {
    std::exchange(prepared.store, nullptr)();
  }
}

}  // namespace

Call UccBackend::call(const Operation& op, int peer, int tag) const {
  const std::atomic<std::uint64_t>& seq = operation::is_message(op) ? message_seq_ : seq_;
  Call call{&op, seq.load(std::memory_order_relaxed) + 1, info_, peer, tag};
  require_usable([&] { return call.describe(); });
  return call;
}

std::optional<Status> UccBackend::why_unusable() const {
  if (in_forked_child()) {
    return Status(StatusCode::closed, kForked);
  }
  if (closed_.load(std::memory_order_acquire)) {
    return Status(StatusCode::closed, "the group was shut down");
  }
  if (const Status* const failure = this->failure()) {
    return Status(failure->code(), "the group had failed before: " + failure->message());
  }
  return std::nullopt;
}

const Status* UccBackend::failure() const { return context_->engine().failure_for(membership_.team->domain()); }

Staging UccBackend::moving(Call& call, at::TensorList tensors) {
  return context_->settings().native.empty() ? Staging(call, lanes_)
                                             : Staging::of_collective(call, tensors, lanes_, context_->direct());
}

Staging UccBackend::reducing(Call& call, at::TensorList tensors, const c10d::ReduceOp& op) {
  return context_->settings().native.empty() || !reduces_on_devices(tensors, op) ? Staging(call, lanes_) : moving(call, tensors);
}

std::shared_ptr<Op> UccBackend::make_op(Call&& call, Prepared&& prepared, trace::Recording recording) {
  const bool check = context_->settings().cross_check && !call.is_message() && size_ > 1;
  const Fingerprint print = check ? Fingerprint::of(call, prepared) : Fingerprint();
  std::shared_ptr<Op> op;
  if (prepared.path != Path::nothing || prepared.store || check) {
    op = make_tensor_op(check ? call : std::move(call), std::move(prepared), membership_.team, membership_.channel,
                        membership_.board, membership_.levels);
  }
  if (check) {
    op = std::make_shared<CheckedOp>(call, print, std::move(op), membership_.team, membership_.channel);
  }
  if (op != nullptr) {
    op->set_recording(recording);
  } else {
    recording.ended(StatusCode::ok);
  }
  return op;
}

Deadline UccBackend::deadline_of(milliseconds timeout, Clock::time_point now) {
  const milliseconds own = timeout.count() > 0 ? timeout : milliseconds(timeout_ms_.load(std::memory_order_relaxed));
  return Deadline::after(own + extensions_.total(), now);
}

// Finds the earlier operations that this call must wait for. If there are none, loads what is sent.
// Refuses a call that shares memory with another one of its coalescing. Nothing after this may
// throw: a sequence number that only one rank has counted would shift the tags of all later calls.
void UccBackend::put_in_order(const Call& call, c10::ArrayRef<Prepared*> all, Outgoing& outgoing) {
  for (std::size_t i = 0; i < all.size() && context_->settings().nan_check; ++i) {
    check_for_nans(call, *all[i]);
  }
  Coalescing* const open = open_coalescing();
  if (outgoing.async_op || open != nullptr || !order_.empty()) {
    for (const Prepared* prepared : all) {
      outgoing.effects.add(effects_of(*prepared));
    }
  }
  if (open != nullptr && conflict(open->effects, outgoing.effects)) {
    refuse_value(call,
                 "one of its tensors shares memory with a tensor of another call of the same coalescing, and one of these calls "
                 "writes it: make these calls one after the other, or clone() a tensor");
  }
  if (!order_.empty()) {
    outgoing.after = call.op == &operation::kBarrier ? order_.collectives() : order_.before(outgoing.effects);
  }
  if (!outgoing.after.empty()) {
    return;
  }
  if (outgoing.copies != nullptr) {
    outgoing.copies->begin();
    return;
  }
  const bool fills = std::any_of(all.begin(), all.end(), [](const Prepared* prepared) { return !prepared->loads.empty(); });
  for (Prepared* prepared : all) {
    begin_on_host(*prepared);
  }
  if (fills && !outgoing.effects.reads.empty()) {
    outgoing.effects = {};
    for (const Prepared* prepared : all) {
      outgoing.effects.add(effects_when_filled(*prepared));
    }
  }
}

// In device memory, the call itself loads what is sent, on the caller's stream. So earlier
// operations on the same memory must end first, and their results must be on the device.
void UccBackend::wait_for_earlier(const Call& call, c10::ArrayRef<Prepared*> all) {
  if (!call.device_memory || order_.empty()) {
    return;
  }
  bool follows = false;
  for (const Prepared* prepared : all) {
    for (const EffectOrder::Before& each : order_.before(effects_of(*prepared))) {
      follows = true;
      while (!each.over()) {
        if (const std::shared_ptr<const Op> op = each.op.lock()) {
          context_->engine().wait(const_cast<Op&>(*op), Deadline::after(milliseconds(1)), check_interrupt);
        }
      }
    }
  }
  if (follows) {
    const c10::Device device = *context_->direct()->device_of_collectives;
    Fence::order(lanes_.of(device).to_device, Fence::current_stream(device));
  }
}

UccBackend::WorkPtr UccBackend::dispatch(Outgoing&& outgoing) {
  if (outgoing.op != nullptr) {
    if (outgoing.copies != nullptr) {
      outgoing.parts.fences.push_back(outgoing.copies->done());
    }
    // A message does not wait for collectives: another rank may need it before it calls them.
    const StagedOp::Line& line = outgoing.is_collective ? collectives_ : messages_;
    if (outgoing.copies != nullptr || !outgoing.after.empty() || line.waiting->load(std::memory_order_relaxed) != 0) {
      outgoing.op = std::make_shared<StagedOp>(std::move(outgoing.op), outgoing.copies, line, std::move(outgoing.after),
                                               !outgoing.effects.reads.empty());
    }
    if (Coalescing* const open = open_coalescing()) {
      return add_to(*open, std::move(outgoing));
    }
  }
  return submit(std::move(outgoing));
}

UccBackend::WorkPtr UccBackend::submit(Outgoing&& outgoing) {
  UccWork::Parts& parts = outgoing.parts;
  parts.is_synchronous = !outgoing.async_op;
  const bool waits_here = parts.is_synchronous && parts.title == nullptr;
  extensions_.begin(outgoing.op.get());
  if (outgoing.op != nullptr) {
    parts.op = std::move(outgoing.op);
    parts.op->set_deadline(outgoing.deadline);
    tell_hook_of(*parts.op, parts);
    if (outgoing.async_op) {
      order_.add(parts.op, std::move(outgoing.effects), outgoing.is_collective, lasting(parts.fences));
    }
    if (waits_here) {
      parts.post_and_drive(*home_);
    } else {
      context_->engine().post(parts.op, outgoing.async_op ? Follow::leaves : Follow::waits);
    }
  }
  if (waits_here) {
    parts.wait(*home_);
    return nullptr;  // null tells c10d that the operation has ended
  }
  return c10::make_intrusive<UccWork>(home_, rank_, std::move(parts));
}

UccBackend::WorkPtr UccBackend::add_to(Coalescing& coalescing, Outgoing&& outgoing) {
  UccWork::Parts& parts = outgoing.parts;
  coalescing.batch->add(outgoing.op);
  coalescing.effects.add(outgoing.effects);
  coalescing.is_collective = coalescing.is_collective || outgoing.is_collective;
  coalescing.inputs.insert(coalescing.inputs.end(), parts.inputs.begin(), parts.inputs.end());
  coalescing.outputs.insert(coalescing.outputs.end(), parts.outputs.begin(), parts.outputs.end());
  coalescing.fences.insert(coalescing.fences.end(), parts.fences.begin(), parts.fences.end());
  if (!outgoing.async_op) {
    return nullptr;  // null tells c10d that the caller waits for the end of the coalescing
  }
  parts.part = std::move(outgoing.op);
  parts.op = coalescing.batch;
  return c10::make_intrusive<UccWork>(home_, rank_, std::move(parts));
}

UccBackend::WorkPtr UccBackend::launch(Call call, Prepared&& prepared, Staging&& staging, milliseconds timeout, bool async_op) {
  Prepared* const only = &prepared;
  const c10::ArrayRef<Prepared*> all(only);
  wait_for_earlier(call, all);
  const Clock::time_point now = Clock::now();
  Outgoing outgoing;
  outgoing.async_op = async_op;
  outgoing.is_collective = !call.is_message();
  outgoing.deadline = deadline_of(timeout, now);
  outgoing.copies = staging.begin(all);
  const trace::Route route = route_of(call, prepared);
  outgoing.parts = parts_of(*call.op, route);
  put_in_order(call, all, outgoing);
  const trace::Recording recording = record(call, prepared, outgoing.parts, route, now);
  outgoing.parts.inputs = std::move(prepared.inputs);
  outgoing.parts.outputs = std::move(prepared.outputs);
  outgoing.parts.seq = call.seq;
  outgoing.op = make_op(std::move(call), std::move(prepared), recording);
  return dispatch(std::move(outgoing));
}

UccBackend::WorkPtr UccBackend::launch_all(const Call& call, std::vector<Prepared>&& all, Staging&& staging, milliseconds timeout,
                                           bool async_op) {
  std::vector<Prepared*> each;
  each.reserve(all.size());
  for (Prepared& prepared : all) {
    each.push_back(&prepared);
  }
  if (share_memory(each)) {
    if (call.device_memory) {
      refuse_value(call,
                   "two of its tensors share memory, and one of them is written. In the memory of a device, UCC cannot order the "
                   "calls (TORCH_UCC_DEVICE_COLLECTIVES=native): make one call after the other, or clone() a tensor");
    }
    std::for_each(all.begin(), all.end(), [](Prepared& prepared) { prepared.isolate(); });
  }
  wait_for_earlier(call, each);
  const Clock::time_point now = Clock::now();
  Outgoing outgoing;
  outgoing.async_op = async_op;
  outgoing.is_collective = true;
  outgoing.deadline = deadline_of(timeout, now);
  outgoing.copies = staging.begin(each);
  outgoing.parts = parts_of(*call.op, route_of(call, all.front()));
  put_in_order(call, each, outgoing);
  auto batch = std::make_shared<OpBatch>(membership_.team->domain(), call.describe());
  UccWork::Parts& parts = outgoing.parts;
  for (Prepared& prepared : all) {
    parts.inputs.insert(parts.inputs.end(), prepared.inputs.begin(), prepared.inputs.end());
    parts.outputs.insert(parts.outputs.end(), prepared.outputs.begin(), prepared.outputs.end());
    Call part = call;
    const trace::Recording recording = record(part, prepared, parts, route_of(part, prepared), now);
    parts.seq = part.seq;
    if (std::shared_ptr<Op> op = make_op(std::move(part), std::move(prepared), recording)) {
      batch->add(std::move(op));
    }
  }
  outgoing.op = batch->empty() ? nullptr : std::move(batch);
  return dispatch(std::move(outgoing));
}

}  // namespace torch_ucc
