// A stream: jobs that one thread runs one after the other, late.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace fake {

// A place in a stream's queue.
class Mark {
 public:
  void pass();
  bool passed() const;
  void wait() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool passed_ = false;
};
using MarkPtr = std::shared_ptr<Mark>;

class Stream {
 public:
  Stream();

  void push(std::function<void()> job);
  // Work, as opposed to marks: it is begun up to set_delay() later than it could be.
  void launch(std::function<void()> kernel);
  // A mark behind everything that was pushed.
  MarkPtr mark();
  // What is pushed from now on runs once the mark was passed.
  void wait_for(MarkPtr mark);
  bool idle() const;

 private:
  void serve();

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool busy_ = false;
};

// The longest delay of a kernel; each is delayed at random.
void set_delay(int microseconds);

// So many more copies to pinned memory come to their end, and others wait there; any number if it
// is negative, as at first.
void let_arrive(int copies);
void wait_to_arrive();

// A mark of which a test says when it is passed.
int make_gate();
MarkPtr gate(int number);

}  // namespace fake
