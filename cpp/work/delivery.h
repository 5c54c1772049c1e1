// Where code of the user runs: the callbacks behind a future.
#pragma once

#include <functional>
#include <memory>

#include "base/deadline.h"

namespace torch_ucc {

// Runs jobs in threads of its own, never in one that makes progress: a callback may block, wait for
// another operation or need the GIL. While all threads are busy another one is started, up to
// kMaxThreads, so that a callback which waits for the future of a later operation does not hold up
// that future.
class Delivery {
 public:
  static constexpr std::size_t kMaxThreads = 16;

  Delivery();
  ~Delivery() = default;  // does not wait: threads own what they use, and end once stop() was called
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  // Non-blocking, any thread. After stop() the job runs in the calling thread.
  void run(std::function<void()> job);

  // Lets the jobs it has finish; false if some still ran at the deadline: they are left behind.
  bool stop(Deadline deadline);

  // Waits for the jobs of all deliveries of this process that are running, without a limit: as
  // Python waits for its threads at exit, since one that needs the GIL after the interpreter has
  // ended would end the process. Says so when it takes long. Throws what check_interrupt() throws.
  static void wait_for_running();

 private:
  struct State;
  static void serve(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace torch_ucc
