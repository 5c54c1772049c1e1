// Writes the flight recorder to a file when an operation fails or a signal arrives, even if all
// other threads of the process are stuck.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "base/deadline.h"
#include "trace/flight_recorder.h"

namespace torch_ucc::trace {

// Owns a thread that sleeps until a dump is requested. That thread needs neither the baton, nor the
// GIL, nor the main thread. A later file replaces an earlier file of the same rank. The first error
// is reported on stderr, later errors are not.
class Dumper {
 public:
  // Dumps go to `directory`/rank<number>.json. Throws StatusError (invalid) if the directory or the
  // eventfd cannot be created.
  Dumper(const FlightRecorder& recorder, std::filesystem::path directory);
  ~Dumper();
  Dumper(const Dumper&) = delete;
  Dumper& operator=(const Dumper&) = delete;

  // Requests a dump and returns at once. `reason` must be a literal. May be called from any thread
  // and from a signal handler.
  void request(const char* reason);

  // Waits until a dump that was begun after the last request is written; returns false if the
  // deadline passes first, or one hour.
  bool flush(Deadline deadline);

 private:
  void run();
  void write(const char* reason);

  const FlightRecorder& recorder_;
  const std::filesystem::path directory_;
  const int wake_;  // an eventfd: its counter is written in signal handlers
  std::atomic<const char*> reason_{""};
  std::atomic<std::uint64_t> requested_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;  // for the condition variable
  std::condition_variable written_wake_;
  bool told_ = false;          // an error was reported; used by the thread only
  std::uint64_t written_ = 0;  // under mutex_: how many requests are in a file
  std::thread thread_;
};

// Starts the dumper of this process. Later calls have no effect. The dumper is never destroyed.
// Throws StatusError (invalid) as the constructor of Dumper does.
void start_dumper(const std::filesystem::path& directory);
// From now on SIGUSR2 requests a dump; an earlier handler of the signal is called afterwards. To be
// called after start_dumper().
void dump_at_signal();

// Requests a dump. Does nothing without a dumper, or in a forked child. May be called from any
// thread and from a signal handler.
void request_dump(const char* reason);
// Waits until the requested dumps are in a file, or until `deadline`. For callers that may be about
// to end the program. Does nothing without a dumper, or in a forked child.
void flush_dump(Deadline deadline = Deadline::after(std::chrono::seconds(2)));

}  // namespace torch_ucc::trace
