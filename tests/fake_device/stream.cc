#include "stream.h"

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace fake {
namespace {

std::atomic<int> longest_delay{100};

}  // namespace

void Mark::pass() {
  const std::lock_guard<std::mutex> lock(mutex_);
  passed_ = true;
  changed_.notify_all();
}

bool Mark::passed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return passed_;
}

void Mark::wait() const {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return passed_; });
}

// Its thread outlives everything that could be waited for, as a device would.
Stream::Stream() {
  std::thread([this] { serve(); }).detach();
}

void Stream::push(std::function<void()> job) {
  const std::lock_guard<std::mutex> lock(mutex_);
  jobs_.push_back(std::move(job));
  wake_.notify_one();
}

void Stream::launch(std::function<void()> kernel) {
  push([kernel = std::move(kernel)] {
    thread_local std::minstd_rand random(std::random_device{}());
    if (const int longest = longest_delay.load(); longest > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<unsigned>(longest)));
    }
    kernel();
  });
}

MarkPtr Stream::mark() {
  auto mark = std::make_shared<Mark>();
  push([mark] { mark->pass(); });
  return mark;
}

void Stream::wait_for(MarkPtr mark) {
  push([mark = std::move(mark)] { mark->wait(); });
}

bool Stream::idle() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return jobs_.empty() && !busy_;
}

void Stream::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    busy_ = false;
    wake_.wait(lock, [this] { return !jobs_.empty(); });
    busy_ = true;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
  }
}

void set_delay(int microseconds) { longest_delay.store(microseconds); }

namespace {

struct Arrivals {
  std::mutex mutex;
  std::condition_variable changed;
  int left = -1;
};

Arrivals& arrivals() {
  static auto* const all = new Arrivals();
  return *all;
}

}  // namespace

void let_arrive(int copies) {
  const std::lock_guard<std::mutex> lock(arrivals().mutex);
  arrivals().left = copies;
  arrivals().changed.notify_all();
}

void wait_to_arrive() {
  std::unique_lock<std::mutex> lock(arrivals().mutex);
  arrivals().changed.wait(lock, [] { return arrivals().left != 0; });
  arrivals().left -= arrivals().left > 0 ? 1 : 0;
}

namespace {

std::mutex gates_mutex;
std::vector<MarkPtr>& gates() {
  static auto* const all = new std::vector<MarkPtr>();
  return *all;
}

}  // namespace

int make_gate() {
  const std::lock_guard<std::mutex> lock(gates_mutex);
  gates().push_back(std::make_shared<Mark>());
  return static_cast<int>(gates().size()) - 1;
}

MarkPtr gate(int number) {
  const std::lock_guard<std::mutex> lock(gates_mutex);
  return gates().at(static_cast<std::size_t>(number));
}

}  // namespace fake
