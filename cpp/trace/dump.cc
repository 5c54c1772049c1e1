#include "trace/dump.h"

#include <unistd.h>

#include <chrono>

#include "base/host.h"
#include "trace/json.h"

namespace torch_ucc::trace {
namespace {

constexpr int kFormat = 1;

std::string to_json(const FlightRecorder::Record& record) {
  const Event& event = record.event;
  Json json('{');
  json.number("id", record.id).number("group", event.group).number("seq", event.seq).text("op", event.op);
  json.field("message", event.is_message ? "true" : "false").text("dtype", event.dtype).text("reduce_op", event.reduce_op);
  json.number("input_elements", event.input_elements).number("output_elements", event.output_elements);
  json.number("bytes", event.bytes).number("root", event.root).number("peer", event.peer).number("tag", event.tag);
  json.text("route", name(event.route)).text("state", name(event.state())).text("result", name(event.result));
  json.number("issued_ns", event.issued_ns).number("posted_ns", event.posted_ns).number("ended_ns", event.ended_ns);
  return json.number("awaited_ns", event.awaited_ns).number("site", event.site).end();
}

std::string to_json(std::uint32_t number, const FlightRecorder::Group& group) {
  Json ranks('[');
  for (const std::int64_t rank : group.global_ranks) {
    ranks.item(std::to_string(rank));
  }
  return FlightRecorder::to_json(number, group, ranks.end());
}

}  // namespace

std::string to_json(const FlightRecorder& recorder, const std::string& reason, std::uint64_t since) {
  Json groups('[');
  Json sites('{');
  Json records('[');
  for (const auto& [number, group] : recorder.groups()) {
    groups.item(to_json(number, group));
  }
  // Before the records, so that later operations do not count as missing
  const auto [first, last] = recorder.held();
  for (const FlightRecorder::Record& record : recorder.records(since)) {
    records.item(to_json(record));
  }
  // After the records, so that each of their sites is included
  for (const auto& [number, text] : recorder.sites()) {
    sites.text(std::to_string(number), text);
  }
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  Json json('{');
  json.number("format", kFormat).text("reason", reason).number("rank", recorder.global_rank()).number("pid", ::getpid());
  json.text("host", host_name()).text("boot_id", boot_id());
  json.number("steady_ns", nanoseconds(Clock::now()));
  json.number("wall_ns", std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count());
  json.number("first_id", first).number("last_id", last).field("groups", groups.end()).field("sites", sites.end());
  return json.field("records", records.end()).end();
}

}  // namespace torch_ucc::trace
