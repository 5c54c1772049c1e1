#include "work/delivery.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/forked.h"
#include "base/interrupt.h"
#include "compat/torch_compat.h"

namespace torch_ucc {

struct Delivery::State {
  std::mutex mutex;  // a queue between threads: callers append, the threads take
  std::condition_variable wake;
  std::deque<std::function<void()>> jobs;
  std::size_t threads = 0;
  std::size_t idle = 0;
  bool stopping = false;
};

namespace {

// The jobs of all deliveries. Never destroyed: a job that was left behind may end after everything
// else.
struct Running {
  std::mutex mutex;  // for the condition variable
  std::condition_variable ended;
  int jobs = 0;
};

Running& running() {
  static auto* const instance = new Running();
  return *instance;
}

// An exception of a job must not end the process. For example, torch's future throws if the user
// has completed it already.
void run_counted(const std::function<void()>& job) {
  {
    const std::lock_guard<std::mutex> lock(running().mutex);
    ++running().jobs;
  }
  try {
    job();
  } catch (const std::exception& error) {
    TORCH_WARN("ucc: a callback that runs after an operation raised an error: ", error.what());
  }
  const std::lock_guard<std::mutex> lock(running().mutex);
  --running().jobs;
  running().ended.notify_all();
}

}  // namespace

Delivery::Delivery() : state_(std::make_shared<State>()) {}

void Delivery::run(std::function<void()> job) {
  if (!queue(job)) {
    run_counted(job);
  }
}

bool Delivery::queue(std::function<void()>& job) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->stopping) {
    return false;
  }
  state_->jobs.push_back(std::move(job));
  if (state_->jobs.size() > state_->idle && state_->threads < kMaxThreads) {
    try {
      std::thread(serve, state_).detach();
      ++state_->threads;
    } catch (const std::system_error&) {
      // The system has no thread left, and no other thread would run it
      if (state_->threads == 0) {
        job = std::move(state_->jobs.back());
        state_->jobs.pop_back();
        return false;
      }
    }
  }
  state_->wake.notify_one();
  return true;
}

bool Delivery::stop(Deadline deadline) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->stopping = true;
  state_->wake.notify_all();
  return state_->wake.wait_until(lock, deadline.at(), [this] { return state_->threads == 0; });
}

void Delivery::wait_for_running() {
  if (in_forked_child()) {
    return;  // they run in the parent
  }
  constexpr std::chrono::seconds kLong{5};
  const Deadline said = Deadline::after(kLong);
  bool say = true;
  std::unique_lock<std::mutex> lock(running().mutex);
  while (!running().ended.wait_for(lock, kInterruptEvery, [] { return running().jobs == 0; })) {
    lock.unlock();
    check_interrupt();
    if (say && said.passed()) {
      say = false;
      TORCH_WARN("ucc: the process waits until the callbacks of futures that still run have returned");
    }
    lock.lock();
  }
}

void Delivery::serve(const std::shared_ptr<State>& state) {
  ::pthread_setname_np(::pthread_self(), "ucc-delivery");
  std::unique_lock<std::mutex> lock(state->mutex);
  while (true) {
    ++state->idle;
    state->wake.wait(lock, [&] { return state->stopping || !state->jobs.empty(); });
    --state->idle;
    if (state->jobs.empty()) {
      break;
    }
    auto job = std::move(state->jobs.front());
    state->jobs.pop_front();
    lock.unlock();
    run_counted(job);
    job = nullptr;  // what it holds is released without the lock
    lock.lock();
  }
  --state->threads;
  state->wake.notify_all();
}

}  // namespace torch_ucc
