#include "trace/dump.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string_view>
#include <utility>

#include "base/host.h"

namespace torch_ucc::trace {
namespace {

constexpr int kFormat = 1;

std::string quoted(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(c));
      json += escape.data();
    } else {
      json += c;
    }
  }
  return json + '"';
}

// Writes `{...}` or `[...]` with commas between what is added.
class Json {
 public:
  explicit Json(char open) : close_(open == '{' ? '}' : ']'), text_(1, open) {}
  Json& item(const std::string& json) {
    text_ += (text_.size() > 1 ? "," : "") + json;
    return *this;
  }
  Json& field(std::string_view key, const std::string& json) { return item(quoted(key) + ":" + json); }
  Json& text(std::string_view key, std::string_view value) { return field(key, quoted(value)); }
  template <typename Number>
  Json& number(std::string_view key, Number value) {
    return field(key, std::to_string(value));
  }
  std::string end() { return std::move(text_) + close_; }

 private:
  const char close_;
  std::string text_;
};

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
  Json errors('{');
  for (const auto& [op, count] : group.errors) {
    errors.number(op, count);
  }
  Json json('{');
  json.number("number", number).text("name", group.name).number("rank", group.rank).field("ranks", ranks.end());
  json.field("closed", group.closed ? "true" : "false").text("failure", group.failure);
  return json.field("errors", errors.end()).end();
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
