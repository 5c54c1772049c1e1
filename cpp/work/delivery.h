// Runs code of the user: the callbacks of futures.
#pragma once

#include <functional>
#include <memory>

#include "base/deadline.h"

namespace torch_ucc {

// Runs jobs in threads of its own, because a callback may block, wait for another operation or need
// the GIL. While all threads are busy, a new job starts another thread, up to kMaxThreads. So a
// callback that waits for the future of a later operation does not hold up that future.
class Delivery {
 public:
  static constexpr std::size_t kMaxThreads = 16;

  Delivery();
  // Does not wait: threads own what they use, and end once stop() was called
  ~Delivery() = default;
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  // Queues a job and returns. Any thread. After stop(), or if the system cannot start the first
  // thread, runs the job in the calling thread instead.
  void run(std::function<void()> job);
  // Queues a job, and never runs it in the calling thread. If there is no thread that can run it,
  // returns false and does not touch the job.
  bool queue(std::function<void()>& job);

  // Waits until the queued jobs have finished. Returns false if some still ran at the deadline;
  // they are left behind.
  bool stop(Deadline deadline);

  // Waits until no delivery of this process runs a job, without a limit, as Python waits for its
  // threads at exit. A job that needs the GIL after the interpreter has ended would end the
  // process. Prints a warning after 5 seconds. Throws what check_interrupt() throws. Does nothing
  // in a forked child.
  static void wait_for_running();

 private:
  struct State;
  static void serve(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace torch_ucc
