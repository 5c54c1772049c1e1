// Writes the recorder to a file when something went wrong or a signal asks, whatever the threads of
// the process are stuck in.
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

// Owns a thread that sleeps until it is asked, and needs nobody: no baton, no interpreter, no main
// thread. A later file replaces an earlier one of the same rank. An error is told on stderr, once.
class Dumper {
 public:
  // Writes to `directory`/rank<number>.json; throws StatusError if the directory cannot be made.
  Dumper(const FlightRecorder& recorder, std::filesystem::path directory);
  ~Dumper();
  Dumper(const Dumper&) = delete;
  Dumper& operator=(const Dumper&) = delete;

  // Returns at once. `reason` is a literal. May be called in a signal handler.
  void request(const char* reason);

  // Sleeps until what was requested before is written; false if the deadline passed first.
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
  bool told_ = false;          // of the thread
  std::uint64_t written_ = 0;  // under mutex_: the requests that are in a file
  std::thread thread_;
};

// The dumper of this process: none until start_dumper(), which only counts the first time. Never
// destroyed.
void start_dumper(const std::filesystem::path& directory);
// Also at SIGUSR2; who handled that before is called after us. After start_dumper().
void dump_at_signal();

// Nothing if there is no dumper.
void request_dump(const char* reason);
// Holds back what may end the program until what was asked for is in a file, or until `deadline`.
void flush_dump(Deadline deadline = Deadline::after(std::chrono::seconds(2)));

}  // namespace torch_ucc::trace
