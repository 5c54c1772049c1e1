// Reports calls to the flight recorder, the counters, the profiler and the completion hook.
#include <algorithm>
#include <utility>

#include "backend/backend.h"
#include "ops/tensor_span.h"
#include "trace/site.h"

namespace torch_ucc {

trace::Route UccBackend::route_of(const Call& call, const Prepared& prepared) const {
  switch (prepared.path) {
    case Path::nothing:
      return trace::Route::none;
    case Path::memory:
      return trace::Route::memory;
    case Path::levels:
      return trace::Route::levels;
    case Path::collective:
      return call.device_memory ? trace::Route::native : trace::Route::ucc;
    case Path::messages:
      return membership_.messages_in_memory ? trace::Route::memory : trace::Route::messages;
  }
  return trace::Route::none;
}

trace::Recording UccBackend::record(Call& call, const Prepared& prepared, const UccWork::Parts& parts, trace::Route route,
                                    Clock::time_point now) {
  call.seq = (call.is_message() ? message_seq_ : seq_).fetch_add(1, std::memory_order_relaxed) + 1;
  if (Coalescing* const open = open_coalescing(); open != nullptr && !call.is_message()) {
    ++open->counted;
  }
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
  event.route = route;
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

}  // namespace torch_ucc
