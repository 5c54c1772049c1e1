// What a shell can learn of a context while the job runs: facts in the journal of this process, and
// a report about this host, which LifeLines gives to other hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backend/roster.h"
#include "liveness/notice.h"

namespace torch_ucc {

// The facts of one context. They are in the journal as long as the object exists. Any thread.
class JobFacts {
 public:
  // A rank of another host, and where it gives its report.
  using Door = std::pair<std::uint64_t, LineAddress>;  // position

  // `number` is that of the context, and `doors` are those that this rank knows.
  JobFacts(std::uint64_t number, const Roster& roster, const std::vector<Door>& doors);
  ~JobFacts();
  JobFacts(const JobFacts&) = delete;
  JobFacts& operator=(const JobFacts&) = delete;

  // Notes that a rank has ended. `what` is for people.
  void gone(std::int64_t global_rank, const std::string& what);

 private:
  const std::string key_;
  std::vector<std::string> gone_;  // keys; used by the watch thread, and by the destructor after it
};

// Returns for each rank on this host, this one included: the number of bytes that follow, as 8
// bytes in the order of the host, then the time in nanoseconds of Clock, a space, the line
// /proc/PID/stat, a line break, and what FlightRecorder::extract() returns for `recent` records.
// Then in the same form the word "tcp", a line break, and tcp_facts().
// Reads memory only, so it needs no other thread, and no rank that is still alive.
std::string report_of_host(const Roster& roster, std::size_t recent);

// What a visitor asks (LifeLines::Answer). The highest byte of its number is one of these. The other
// bytes are the number of records of a report, or the rank whose stack it asks for.
enum class Question : std::uint8_t {
  report = 0,     // report_of_host() of so many records
  ask_stack = 1,  // asks this rank, on this host, for its Python stack; "asked", or empty if it offers none
  stack = 2,      // what this rank has answered so far
};
std::string answer_visitor(const Roster& roster, std::uint64_t question);

}  // namespace torch_ucc
