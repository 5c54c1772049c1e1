#include "backend/job_facts.h"

#include <cstring>
#include <map>
#include <optional>

#include "base/deadline.h"
#include "base/hex.h"
#include "base/process_state.h"
#include "liveness/stack_offer.h"
#include "liveness/tcp_facts.h"
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

// The record of a rank on this host; null for any other.
const PeerRecord* neighbour(const Roster& roster, std::int64_t global_rank) {
  for (const std::uint64_t position : roster.everybody()) {
    if (roster.global_rank(position) == global_rank && roster.plan().host_of(position) == roster.plan().host_of(roster.self())) {
      return &roster.record(position);
    }
  }
  return nullptr;
}

std::string journal_of(const PeerRecord& record) {
  const std::string extract = trace::FlightRecorder::extract(record.recorder, 0);
  std::uint64_t size = 0;
  if (extract.size() < sizeof(size)) {
    return "";
  }
  std::memcpy(&size, extract.data(), sizeof(size));
  return extract.substr(sizeof(size), size);
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
  const auto add = [&](const std::string& part) {
    const std::uint64_t size = part.size();
    report.append(reinterpret_cast<const char*>(&size), sizeof(size));
    report += part;
  };
  for (const std::uint64_t position : roster.everybody()) {
    if (roster.plan().host_of(position) == roster.plan().host_of(roster.self())) {
      const PeerRecord& record = roster.record(position);
      const std::string now = std::to_string(trace::nanoseconds(Clock::now()));
      add(now + " " + process_stat(record.pid) + "\n" + trace::FlightRecorder::extract(record.recorder, recent));
    }
  }
  add("tcp\n" + tcp_facts());
  return report;
}

std::string answer_visitor(const Roster& roster, std::uint64_t question) {
  constexpr unsigned kNumberBits = 56;
  const auto kind = static_cast<Question>(question >> kNumberBits);
  const std::uint64_t number = question & ((std::uint64_t{1} << kNumberBits) - 1);
  if (kind == Question::report) {
    return report_of_host(roster, number);
  }
  const PeerRecord* const record = neighbour(roster, static_cast<std::int64_t>(number));
  const std::optional<StackOffer> offer = record == nullptr ? std::nullopt : StackOffer::in(journal_of(*record));
  if (offer && kind == Question::ask_stack) {
    return offer->ask(record->pid) ? "asked" : "";
  }
  return offer && kind == Question::stack ? offer->read(record->pid) : "";
}

}  // namespace torch_ucc
