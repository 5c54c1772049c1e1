#include "backend/backend.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/forked.h"
#include "bootstrap/monitored_barrier.h"
#include "ops/cross_check.h"
#include "ops/effects.h"
#include "ops/tensor_op.h"
#include "ops/tensor_span.h"
#include "store/c10d_store.h"
#include "trace/dumper.h"
#include "trace/site.h"
#include "ucx/messages.h"
#include "work/errors.h"

namespace torch_ucc {
namespace {

using std::chrono::milliseconds;

static_assert(operation::kTable.size() <= WorkHome::kOperations);

// A WorkHome that keeps the context alive as long as a Work is.
std::shared_ptr<WorkHome> home_in(const std::shared_ptr<CommContext>& context, const GroupSpec& group) {
  struct Home {
    Home(std::shared_ptr<CommContext> owner, std::uint32_t group)
        : context(std::move(owner)), home{context->engine(), context->delivery(), group, context->settings().blocking_wait} {}
    std::shared_ptr<CommContext> context;
    WorkHome home;
  };
  const std::uint32_t number = trace::recorder().add_group({group.name, group.rank, group.global_ranks, false, "", {}});
  auto owner = std::make_shared<Home>(context, number);
  return {owner, &owner->home};
}

trace::Route route_of(const Call& call, const Prepared& prepared) {
  switch (prepared.path) {
    case Path::nothing:
      return trace::Route::none;
    case Path::collective:
      return call.device_memory ? trace::Route::native : trace::Route::ucc;
    case Path::messages:
      return trace::Route::messages;
  }
  return trace::Route::none;
}

// Whether results are still on their way to a device; nothing if there is none.
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

// What can be done at once of a call whose tensors are on the host.
void begin_on_host(Prepared& prepared) {
  prepared.fill();
  if (prepared.path == Path::nothing && prepared.store) {
    std::exchange(prepared.store, nullptr)();
  }
}

// The lists of a coalesced call.
void check_pairs(const Call& call, std::size_t outputs, std::size_t inputs) {
  if (outputs != inputs || inputs == 0) {
    refuse_value(call, "there must be as many outputs as inputs, and at least one: they are " + std::to_string(outputs) +
                           " and " + std::to_string(inputs));
  }
}

}  // namespace

UccBackend::UccBackend(const Place& place, const Settings& settings)
    : Backend(place.group.rank, static_cast<int>(place.group.global_ranks.size())),
      spec_(place.group),
      info_(std::make_shared<GroupInfo>(GroupInfo{spec_.name, rank_, size_})),
      coalesced_name_("coalesced calls of group '" + info_->name + "' on rank " + std::to_string(rank_) + " of " +
                      std::to_string(size_)),
      context_(CommContext::at(place, settings)),
      membership_(context_->join(spec_, place.id)),
      home_(home_in(context_, spec_)),
      timeout_ms_(spec_.timeout.count()) {
  init();
}

// --- from a call to its Work
// ----------------------------------------------------------------------------------------------------------

Call UccBackend::call(const Operation& op, int peer, int tag) const {
  const std::atomic<std::uint64_t>& seq = operation::is_message(op) ? message_seq_ : seq_;
  Call call{&op, seq.load(std::memory_order_relaxed) + 1, info_, peer, tag};
  refuse_forked_child(call.describe());
  if (closed_.load(std::memory_order_acquire)) {
    throw_for_user(Status(StatusCode::closed, call.describe() + ": the group was shut down"));
  }
  if (const Status* const failure = this->failure()) {
    throw_for_user(Status(failure->code(), call.describe() + ": the group had failed before: " + failure->message()));
  }
  return call;
}

const Status* UccBackend::failure() const {
  const FailureDomain& domain = membership_.team->domain();
  if (domain.failed()) {
    return &domain.failure();
  }
  return context_->engine().failed() ? &context_->engine().failure() : nullptr;
}

void UccBackend::refuse_forked_child(const std::string& what) const {
  if (in_forked_child()) {
    throw_for_user(
        Status(StatusCode::closed, what + ": this process was forked from a member of the group, and is no member itself"));
  }
}

template <typename Body>
UccBackend::WorkPtr UccBackend::serve(const Operation& op, const Body& body) {
  return serve_message(op, Call::kNoPeer, 0, body);
}

template <typename Body>
UccBackend::WorkPtr UccBackend::serve_message(const Operation& op, int peer, int tag, const Body& body) {
  try {
    Call call = this->call(op, peer, tag);
    return body(call);
  } catch (const std::exception& error) {
    if (Coalescing* const open = open_coalescing()) {
      const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
      const std::string why = of_torch == nullptr ? error.what() : of_torch->what_without_backtrace();
      open->refusal =
          Status(StatusCode::invalid, "the coalescing of group '" + info_->name +
                                          "' was dropped, and nothing of it was sent: a call of it was refused: " + why);
      open->drop("a call of it was refused: " + why);
    }
    throw;
  }
}

Staging UccBackend::moving(Call& call) {
  return context_->settings().native.empty() ? Staging(call, lanes_) : Staging::of_collective(call, lanes_, context_->direct());
}

Staging UccBackend::reducing(Call& call, const Tensors& tensors, const c10d::ReduceOp& op) {
  return context_->settings().native.empty() || !reduces_on_devices(tensors, op) ? Staging(call, lanes_) : moving(call);
}

std::shared_ptr<Op> UccBackend::make_op(Call&& call, Prepared&& prepared, trace::Recording recording) {
  const bool check = context_->settings().cross_check && !call.is_message() && size_ > 1;
  const Fingerprint print = check ? Fingerprint::of(call, prepared) : Fingerprint();
  std::shared_ptr<Op> op;
  if (prepared.path != Path::nothing || prepared.store || check) {
    op = make_tensor_op(check ? call : std::move(call), std::move(prepared), membership_.team, membership_.channel);
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

Deadline UccBackend::deadline_of(milliseconds timeout, Clock::time_point now) const {
  return Deadline::after(timeout.count() > 0 ? timeout : milliseconds(timeout_ms_.load(std::memory_order_relaxed)), now);
}

trace::Recording UccBackend::begin(Call& call, const Prepared& prepared, const UccWork::Parts& parts, Clock::time_point now) {
  call.seq = (call.is_message() ? message_seq_ : seq_).fetch_add(1, std::memory_order_relaxed) + 1;
  context_->engine().bell().set_activity(
      {membership_.team->id(), operation::index_of(*call.op), static_cast<std::uint32_t>(call.seq), now});
  trace::CallRecord event;
  event.seq = call.seq;
  event.op = call.op->name;
  if (const Payload& payload = prepared.payload; payload.dtype != at::ScalarType::Undefined) {
    event.dtype = lasting_dtype_name(payload.dtype);
    event.reduce_op = payload.reduce_op == nullptr ? "" : payload.reduce_op;
    event.output_elements = elements_in(prepared.outputs);
    event.input_elements = prepared.inputs.empty() ? event.output_elements : elements_in(prepared.inputs);
    event.bytes =
        std::max(event.input_elements, event.output_elements) * static_cast<std::int64_t>(c10::elementSize(payload.dtype));
  }
  event.issued_ns = trace::nanoseconds(now);
  event.group = home_->group;
  event.site = trace::site_of_caller();
  event.peer = call.peer;
  event.root = static_cast<std::int32_t>(prepared.root);
  event.tag = static_cast<std::uint32_t>(call.tag);
  event.is_message = call.is_message();
  event.route = route_of(call, prepared);
  const std::vector<std::int64_t>& ranks = spec_.global_ranks;
  if (parts.title != nullptr) {
    tell_profiler(call, prepared, ranks.front(), ranks.size() > 1 ? ranks[1] - ranks[0] : 1);
  }
  counters_of(*call.op, event.route).called(event.bytes);
  return trace::recorder().begin(event);
}

trace::Counters& UccBackend::counters_of(const Operation& op, trace::Route route) {
  return home_->counters[operation::index_of(op)][route];
}

void UccBackend::tell_hook_of(Op& op, const UccWork::Parts& parts) {
  if (hook_ == nullptr) {
    return;
  }
  hook_->expect();
  op.completion().on_done([hook = hook_, home = home_, type = parts.type, seq = parts.seq, start = Clock::now()] {
    const Clock::time_point end = Clock::now();
    home->delivery.run([hook, info = std::make_shared<c10d::WorkInfo>(type, seq, start, end, end - start)] { hook->run(info); });
  });
}

UccWork::Parts UccBackend::parts_of(const Operation& op, trace::Route route) {
  UccWork::Parts parts;
  parts.type = op.type;
  parts.title = at::hasCallbacks() ? op.title : nullptr;
  parts.counters = &counters_of(op, route);
  return parts;
}

// Here is the last that may throw: a sequence number that only one rank has counted would shift the
// tags of all later calls. Refuses a call that shares memory with another one of its coalescing.
// What is sent is loaded here, unless an earlier operation has to end first.
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
                 "one of its tensors shares memory with a tensor of another call of the same coalescing, and one of the two "
                 "is written: make these calls one after the other, or clone() a tensor");
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

// In the memory of a device what is sent is loaded on the caller's stream in the call, so earlier
// operations have to end before, and their results to be there.
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
  return post(std::move(outgoing));
}

UccBackend::WorkPtr UccBackend::post(Outgoing&& outgoing) {
  UccWork::Parts& parts = outgoing.parts;
  const bool waits_here = !outgoing.async_op && parts.title == nullptr;
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
    return nullptr;  // c10d's way of hearing that it has ended
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
    return nullptr;  // c10d's way of saying that the end of the coalescing is waited for instead
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
  outgoing.parts = parts_of(*call.op, route_of(call, prepared));
  put_in_order(call, all, outgoing);
  const trace::Recording recording = begin(call, prepared, outgoing.parts, now);
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
                   "two of its tensors share memory, and one of the two is written, which UCC cannot put in order in the memory "
                   "of a device (TORCH_UCC_DEVICE_COLLECTIVES=native): make one call after the other, or clone() a tensor");
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
    const trace::Recording recording = begin(part, prepared, parts, now);
    parts.seq = part.seq;
    if (std::shared_ptr<Op> op = make_op(std::move(part), std::move(prepared), recording)) {
      batch->add(std::move(op));
    }
  }
  outgoing.op = batch->empty() ? nullptr : std::move(batch);
  return dispatch(std::move(outgoing));
}

// --- coalescing
// ---------------------------------------------------------------------------------------------------------------------------

Coalescing* UccBackend::open_coalescing() const {
  Coalescing* const open = coalescings::find(home_->group);
  return open == nullptr || open->batch == nullptr ? nullptr : open;
}

void UccBackend::startCoalescing() {
  const Call call = this->call(operation::kCoalesced);
  Coalescing coalescing;
  coalescing.batch = std::make_shared<OpBatch>(membership_.team->domain(), coalesced_name_);
  coalescings::open(home_->group, std::move(coalescing));
}

UccBackend::WorkPtr UccBackend::endCoalescing() {
  refuse_forked_child("the coalescing of group '" + info_->name + "'");
  std::optional<Coalescing> ended = coalescings::close(home_->group);
  if (!ended) {
    throw_for_user(Status(StatusCode::invalid, "the coalescing of group '" + info_->name + "' ended without a start"));
  }
  if (ended->batch == nullptr) {
    throw_for_user(ended->refusal);
  }
  Outgoing outgoing;
  outgoing.op = ended->batch->empty() ? nullptr : std::move(ended->batch);
  outgoing.parts = parts_of(operation::kCoalesced, trace::Route::none);  // of all ways that its calls go
  outgoing.parts.seq = seq_.load(std::memory_order_relaxed);
  outgoing.parts.outputs = std::move(ended->outputs);
  outgoing.parts.fences = std::move(ended->fences);
  outgoing.effects = std::move(ended->effects);
  outgoing.deadline = deadline_of(c10d::kUnsetTimeout, Clock::now());
  outgoing.async_op = true;
  outgoing.is_collective = ended->is_collective;
  return post(std::move(outgoing));
}

void UccBackend::dropCoalescing(const std::string& why) {
  if (std::optional<Coalescing> dropped = coalescings::close(home_->group)) {
    dropped->drop(why);
  }
}

// --- the table
// ----------------------------------------------------------------------------------------------------------------------------

UccBackend::WorkPtr UccBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return serve(operation::kBroadcast, [&](Call& call) {
    Staging staging = moving(call);
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
    Staging staging = moving(call);
    Prepared prepared = prepare_allgather(call, staging.written(outputs), staging.read(inputs), context_->settings());
    return launch(std::move(call), std::move(prepared), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

UccBackend::WorkPtr UccBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  return serve(operation::kAllGatherInto, [&](Call& call) {
    Staging staging = moving(call);
    Prepared prepared = prepare_allgather_into(call, staging.written(output), staging.read(input), context_->settings());
    return launch(std::move(call), std::move(prepared), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

// outputs[rank][i] is where the i-th input of that rank goes.
UccBackend::WorkPtr UccBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return serve(operation::kAllGatherCoalesced, [&](Call& call) {
    Staging staging = moving(call);
    if (outputs.size() != static_cast<std::size_t>(size_)) {
      refuse_value(
          call, "there must be one list of outputs a rank, " + std::to_string(size_) + ", not " + std::to_string(outputs.size()));
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
    Staging staging = moving(call);
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
    Staging staging = reducing(call, {output}, opts.reduceOp);
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

UccBackend::WorkPtr UccBackend::send(Tensors& tensors, int destination, int tag) {
  return serve_message(operation::kSend, destination, tag, [&](Call& call) {
    Staging staging = Staging::of_message(call, lanes_, context_->direct());
    Tensors& staged = staging.read(tensors);
    Prepared prepared = prepare_send(call, staged, staging.memory());
    return launch(std::move(call), std::move(prepared), std::move(staging), c10d::kUnsetTimeout, true);
  });
}

UccBackend::WorkPtr UccBackend::recv(Tensors& tensors, int source, int tag) {
  return serve_message(operation::kRecv, source, tag, [&](Call& call) { return receive(call, tensors); });
}

UccBackend::WorkPtr UccBackend::recvAnysource(Tensors& tensors, int tag) {
  return serve_message(operation::kRecvAnySource, Message::kAnyRank, tag, [&](Call& call) { return receive(call, tensors); });
}

UccBackend::WorkPtr UccBackend::receive(const Call& call, Tensors& tensors) {
  Staging staging = Staging::of_message(call, lanes_, context_->direct());
  Tensors& staged = staging.written(tensors);
  Prepared prepared = prepare_recv(call, staged, staging.memory());
  return launch(call, std::move(prepared), std::move(staging), c10d::kUnsetTimeout, true);
}

UccBackend::WorkPtr UccBackend::barrier(const c10d::BarrierOptions& opts) {
  return serve(operation::kBarrier, [&](Call& call) {
    Staging staging(call, lanes_);
    // Of all that a caller says of the device this is what c10d hands on.
    const std::optional<c10::DeviceType> accelerator = at::getAccelerator();
    if (accelerator && !opts.device_ids.empty()) {
      staging.behind(c10::Device(*accelerator, static_cast<c10::DeviceIndex>(opts.device_ids.front())));
    }
    return launch(std::move(call), prepare_barrier(), std::move(staging), opts.timeout, opts.asyncOp);
  });
}

void UccBackend::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  refuse_forked_child("monitored_barrier of group '" + info_->name + "'");
  const bool own = opts.timeout != c10d::kUnsetTimeout;
  // Earlier groups may have used the same store under the same name.
  const std::string name = context_->key_prefix() + "/monitored_barrier/" + std::to_string(membership_.team->id());
  // Of use after a failure, so one that is not the end of a rank is no reason to give up.
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

// --- the group
// ----------------------------------------------------------------------------------------------------------------------------

c10::intrusive_ptr<c10d::Backend> UccBackend::split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                                    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  refuse_forked_child("splitting group '" + info_->name + "'");
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size_) {
      throw_for_user(
          Status(StatusCode::invalid, "split: rank " + std::to_string(rank) + " is not a rank of group '" + info_->name + "'"));
    }
  }
  return part(std::make_shared<C10dStore>(store), opts ? opts->group_name : info_->name + ":split", ranks, opts);
}

c10::intrusive_ptr<c10d::Backend> UccBackend::shrink(const std::vector<std::int64_t>& ranks_to_exclude, int shrink_flags,
                                                     const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  refuse_forked_child("shrinking group '" + info_->name + "'");
  if (shrink_flags != 0) {
    context_->engine().fail(membership_.team->domain(),
                            Status(StatusCode::closed, "group '" + info_->name + "' was shrunk while it was in flight"));
  }
  std::string name = info_->name + ":without";
  for (const std::int64_t rank : ranks_to_exclude) {
    name += " " + std::to_string(rank);
  }
  std::vector<int> rest;
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), rank) == ranks_to_exclude.end()) {
      rest.push_back(rank);
    }
  }
  return part(spec_.store, name, rest, opts, true);
}

c10::intrusive_ptr<c10d::Backend> UccBackend::part(std::shared_ptr<KvStore> store, const std::string& name,
                                                   const std::vector<int>& ranks,
                                                   const c10::intrusive_ptr<c10d::Backend::Options>& opts, bool apart) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) {
    return nullptr;
  }
  const Settings& settings = context_->settings();
  const auto* const own = dynamic_cast<const Options*>(opts.get());
  if (own != nullptr && !(own->ucc.empty() && own->ucx.empty()) &&
      (own->ucc != settings.own_ucc || own->ucx != settings.own_ucx)) {
    throw_for_user(Status(StatusCode::unsupported, "a part of group '" + info_->name +
                                                       "' has the options of UCC and UCX that the group has: for others use "
                                                       "new_group()"));
  }
  const bool timed = opts && opts->timeout != c10d::kUnsetTimeout;  // or options that set something else
  // Of a whole world that is shrunk, torch numbers the processes that are left anew.
  const bool is_new_world = apart && spec_.global_ranks.size() == spec_.world->size;
  GroupSpec part{std::move(store),
                 name,
                 is_new_world ? std::make_shared<const World>(World{ranks.size()}) : spec_.world,
                 {},
                 static_cast<int>(mine - ranks.begin()),
                 timed ? opts->timeout : milliseconds(timeout_ms_.load()),
                 apart};
  for (const int rank : ranks) {
    part.global_ranks.push_back(is_new_world ? static_cast<std::int64_t>(part.global_ranks.size())
                                             : spec_.global_ranks[static_cast<std::size_t>(rank)]);
  }
  return for_user([&] { return c10::make_intrusive<UccBackend>(CommContext::find_place(part, settings), settings); });
}

void UccBackend::setTimeout(milliseconds timeout) { timeout_ms_.store(timeout.count()); }

c10::intrusive_ptr<c10d::Backend::Options> UccBackend::getBackendOptions() {
  return c10::make_intrusive<Options>(milliseconds(timeout_ms_.load()), context_->settings().own_ucc,
                                      context_->settings().own_ucx);
}

c10d::ErrorType UccBackend::getError() {
  const Status* const failure = this->failure();
  if (failure == nullptr) {
    return c10d::ErrorType::SUCCESS;
  }
  switch (failure->code()) {
    case StatusCode::timeout:
      return c10d::ErrorType::TIMEOUT;
    case StatusCode::peer_gone:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void UccBackend::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  if (hook_ != nullptr) {
    throw_for_user(Status(StatusCode::invalid, "group '" + info_->name + "' has a completion hook already"));
  }
  onCompletionHook_ = std::move(hook);
  hook_ = std::make_shared<CompletionHook>(onCompletionHook_);
}

void UccBackend::waitForPendingWorks() {
  refuse_forked_child("waiting for the operations of group '" + info_->name + "'");
  const Deadline deadline = Deadline::after(milliseconds(timeout_ms_.load()));
  const bool drained = context_->engine().drain(membership_.team->domain(), deadline) || failure() != nullptr;
  if (!drained || (hook_ != nullptr && !hook_->wait(deadline))) {
    throw_for_user(Status(StatusCode::timeout, "operations of group '" + info_->name + "' had not ended at its timeout"));
  }
}

void UccBackend::shutdown() { close(context_->settings().close_timeout); }

void UccBackend::abort() {
  trace::request_dump("abort");  // of what is in flight
  trace::flush_dump();
  close(milliseconds(0));
}

// In a forked child there is nothing to close: what it has is its parent's.
void UccBackend::close(milliseconds drain) {
  if (!closed_.exchange(true, std::memory_order_acq_rel) && !in_forked_child()) {
    context_->leave(membership_.team, info_->name, drain);
    trace::recorder().close_group(home_->group);
  }
}

}  // namespace torch_ucc
