#include "work/delivery.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace torch_ucc {

struct Delivery::State {
  std::mutex mutex;  // a queue between threads: callers append, the threads take
  std::condition_variable wake;
  std::deque<std::function<void()>> jobs;
  std::size_t threads = 0;
  std::size_t idle = 0;
  bool stopping = false;
};

Delivery::Delivery() : state_(std::make_shared<State>()) {}

void Delivery::run(std::function<void()> job) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  if (state_->stopping) {
    lock.unlock();
    job();
    return;
  }
  state_->jobs.push_back(std::move(job));
  if (state_->jobs.size() > state_->idle && state_->threads < kMaxThreads) {
    try {
      std::thread(serve, state_).detach();
      ++state_->threads;
    } catch (const std::system_error&) {
      if (state_->threads == 0) {  // the system has no thread left, and nobody else would run it
        job = std::move(state_->jobs.back());
        state_->jobs.pop_back();
        lock.unlock();
        job();
        return;
      }
    }
  }
  state_->wake.notify_one();
}

bool Delivery::stop(Deadline deadline) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->stopping = true;
  state_->wake.notify_all();
  return state_->wake.wait_until(lock, deadline.at(), [this] { return state_->threads == 0; });
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
    job();
    job = nullptr;  // what it holds is released without the lock
    lock.lock();
  }
  --state->threads;
  state->wake.notify_all();
}

}  // namespace torch_ucc
