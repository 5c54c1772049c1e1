#include "work/c10d_log.h"

#include <map>
#include <optional>

#include "compat/torch_compat.h"
#include "trace/flight_recorder.h"

namespace torch_ucc {

void log_failure(std::uint32_t group, const Op& op, const Status& status) {
  c10d::C10dLogger* const logger = c10d::C10dLogger::getLogger();
  if (logger == nullptr) {
    return;
  }
  c10d::C10dLoggingData data;
  data.strings["pg_backend"] = "ucc";
  data.strings["work_ucc_exception"] = status.message();
  data.strings["status"] = trace::name(status.code());
  data.integers["pg_id"] = group;
  const std::map<std::uint32_t, trace::FlightRecorder::Group> groups = trace::recorder().groups();
  if (const auto it = groups.find(group); it != groups.end()) {
    data.strings["pg_name"] = it->second.name;
    data.integers["rank"] = it->second.rank;
    data.integers["global_rank"] = it->second.global_ranks.at(static_cast<std::size_t>(it->second.rank));
    data.integers["world_size"] = static_cast<std::int64_t>(it->second.global_ranks.size());
  }
  if (const std::optional<trace::Event> event = op.recording().event()) {
    data.strings["work_name"] = event->op;
    data.integers["work_seq"] = static_cast<std::int64_t>(event->seq);
  }
  logger->log(data);
}

}  // namespace torch_ucc
