#include "backend/job_facts.h"

#include <map>

#include "base/deadline.h"
#include "base/hex.h"
#include "base/process_state.h"
#include "ops/tensor_span.h"
#include "trace/flight_recorder.h"
#include "trace/json.h"

namespace torch_ucc {
namespace {

using trace::Json;

std::string host_list(const Roster& roster) {
  std::map<std::size_t, std::pair<std::string, std::vector<std::int64_t>>> hosts;
  for (const std::uint64_t position : roster.everybody()) {
    auto& [name, ranks] = hosts[roster.plan().host_of(position)];
    name = roster.record(position).host;
    ranks.push_back(roster.global_rank(position));
  }
  Json list('[');
  for (const auto& [number, host] : hosts) {
    list.item(Json('{').text("name", host.first).field("ranks", trace::runs_of(host.second)).end());
  }
  return list.end();
}

std::string door_list(const Roster& roster, const std::vector<JobFacts::Door>& doors) {
  Json list('[');
  for (const auto& [position, address] : doors) {
    Json door('{');
    door.number("rank", roster.global_rank(position)).number("host", roster.plan().host_of(position));
    door.text("hosts", address.hosts).number("port", address.port);
    list.item(door.text("secret", to_hex(address.secret.knock + address.secret.answer)).end());
  }
  return list.end();
}

}  // namespace

JobFacts::JobFacts(std::uint64_t number, const Roster& roster, const std::vector<Door>& doors)
    : key_("context/" + std::to_string(number)) {
  trace::recorder().name_texts(lasting_texts());
  Json json('{');
  json.number("number", number).text("world", roster.record(0).nonce).number("rank", roster.global_rank(roster.self()));
  json.number("size", roster.size()).number("host", roster.plan().host_of(roster.self()));
  json.field("hosts", host_list(roster)).field("doors", door_list(roster, doors));
  trace::recorder().journal().set(key_, json.end());
}

JobFacts::~JobFacts() {
  for (const std::string& key : gone_) {
    trace::recorder().journal().remove(key);
  }
  trace::recorder().journal().remove(key_);
}

void JobFacts::gone(std::int64_t global_rank, const std::string& what) {
  gone_.push_back("gone/" + key_ + "/" + std::to_string(global_rank));
  Json json('{');
  json.number("rank", global_rank).text("what", what).number("at_ns", trace::nanoseconds(Clock::now()));
  trace::recorder().journal().set(gone_.back(), json.end());
}

std::string report_of_host(const Roster& roster, std::size_t recent) {
  std::string report;
  for (const std::uint64_t position : roster.everybody()) {
    if (roster.plan().host_of(position) == roster.plan().host_of(roster.self())) {
      const PeerRecord& record = roster.record(position);
      const std::string now = std::to_string(trace::nanoseconds(Clock::now()));
      const std::string part =
          now + " " + process_stat(record.pid) + "\n" + trace::FlightRecorder::extract(record.recorder, recent);
      const std::uint64_t size = part.size();
      report.append(reinterpret_cast<const char*>(&size), sizeof(size));
      report += part;
    }
  }
  return report;
}

}  // namespace torch_ucc
