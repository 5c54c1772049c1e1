#include "bootstrap/monitored_barrier.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/named_values.h"
#include "base/status.h"
#include "bootstrap/backoff.h"

namespace torch_ucc {
namespace {

// How much longer than the limit the other ranks wait for the verdict of rank 0.
constexpr milliseconds kForTheVerdict{5000};

std::uint64_t number_of(const std::string& value) {
  return static_cast<std::uint64_t>(number_in(value, "a key of the monitored barrier"));
}

// What rank 0 has found out. `missing` is empty if all ranks came.
std::string verdict_of(const MonitoredBarrier& barrier, const std::string& missing) {
  return encode_values({{"number", std::to_string(barrier.number)}, {"missing", missing}});
}

std::string key_of(const MonitoredBarrier& barrier, int rank) { return barrier.name + "/" + std::to_string(rank); }
std::string verdict_key(const MonitoredBarrier& barrier) { return barrier.name + "/verdict"; }

bool has_come(const MonitoredBarrier& barrier, int rank) {
  const std::optional<std::string> came = barrier.store.get(key_of(barrier, rank));
  return came && number_of(*came) >= barrier.number;
}

std::string names_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "Rank " : "Ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

// Runs on rank 0. Returns the names of missing ranks as an error message; empty if none is missing.
std::string find_missing(const MonitoredBarrier& barrier, milliseconds limit, bool wait_all_ranks) {
  const Deadline deadline = Deadline::after(limit);
  std::vector<int> missing;
  for (int rank = 1; rank < barrier.size; ++rank) {
    Backoff backoff;
    bool came = has_come(barrier, rank);
    while (!came && !deadline.passed()) {
      backoff.sleep(barrier.give_up);
      came = has_come(barrier, rank);
    }
    if (!came) {
      missing.push_back(rank);
      if (!wait_all_ranks) {
        break;
      }
    }
  }
  return missing.empty() ? ""
                         : names_of(missing) + " failed to pass monitoredBarrier in " + std::to_string(limit.count()) + " ms";
}

}  // namespace

void wait_for_all(const MonitoredBarrier& barrier, milliseconds limit, bool wait_all_ranks) {
  if (barrier.rank == 0) {
    if (limit.count() <= 0) {
      throw StatusError(Status(StatusCode::timeout, "Rank 0 timed out in monitoredBarrier after " +
                                                        std::to_string(limit.count()) + " ms: its limit leaves no time"));
    }
    std::string missing;
    try {
      missing = find_missing(barrier, limit, wait_all_ranks);
    } catch (const StatusError& error) {
      barrier.store.set(verdict_key(barrier), verdict_of(barrier, error.status().message()));
      throw;
    }
    barrier.store.set(verdict_key(barrier), verdict_of(barrier, missing));
    if (!missing.empty()) {
      throw StatusError(Status(StatusCode::timeout, "[Rank 0]: " + missing));
    }
    return;
  }
  barrier.store.set(key_of(barrier, barrier.rank), std::to_string(barrier.number));
  const Deadline deadline = Deadline::after(limit + kForTheVerdict);
  Backoff backoff(barrier.size);
  while (true) {
    const std::optional<std::string> verdict = barrier.store.get(verdict_key(barrier));
    const NamedValues fields = decode_values(verdict.value_or(""));
    const std::uint64_t decided = verdict ? number_of(value_at(fields, 0, "number")) : 0;
    if (decided >= barrier.number) {
      std::string missing = value_at(fields, 1, "missing");
      if (decided > barrier.number) {  // rank 0 goes on without this rank only after a failure
        missing = "it has gone on to a later barrier";
      }
      if (missing.empty()) {
        return;
      }
      throw StatusError(Status(StatusCode::timeout, "Rank " + std::to_string(barrier.rank) +
                                                        " successfully reached monitoredBarrier, but received errors while "
                                                        "waiting for send/recv from rank 0: " +
                                                        missing));
    }
    if (deadline.passed()) {
      throw StatusError(Status(StatusCode::timeout, "Rank " + std::to_string(barrier.rank) +
                                                        " timed out in monitoredBarrier: rank 0 has not passed it after " +
                                                        std::to_string(limit.count()) + " ms"));
    }
    backoff.sleep(barrier.give_up);
  }
}

}  // namespace torch_ucc
