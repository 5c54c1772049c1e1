// The last operations of this process, always recorded, readable while everything else is stuck.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "trace/event.h"

namespace torch_ucc::trace {

class FlightRecorder;

// One operation's place in the recorder; of none unless begin() gave it. Any thread; later than the
// end of the operation's record, or after its place went to another, calls do nothing.
class Recording {
 public:
  Recording() = default;
  void posted() const;
  void awaited(Clock::time_point since) const;  // the first call counts
  void ended(StatusCode result) const;
  // Nothing if it is not, or no longer, recorded.
  std::optional<Event> event() const;

 private:
  friend class FlightRecorder;
  Recording(FlightRecorder* recorder, std::uint64_t id) : recorder_(recorder), id_(id) {}
  FlightRecorder* recorder_ = nullptr;
  std::uint64_t id_ = 0;
};

// A ring. Recording costs a few stores: it neither allocates, nor formats, nor takes a lock; each
// slot has a version, odd while it is written, and is read again if that changed meanwhile. All
// members may be called from any thread.
class FlightRecorder {
 public:
  static constexpr std::size_t kCapacity = 8192;  // 1 MB, and 5 to 30 ms of the smallest operations back to back

  struct Group {
    std::string name;
    int rank = 0;
    std::vector<std::int64_t> global_ranks;  // by rank of the group
    bool closed = false;
    std::string failure;                          // the first; empty: none
    std::map<std::string, std::uint64_t> errors;  // operations that failed, by name
  };
  struct Record {
    std::uint64_t id;  // counts the operations of this process from 1
    Event event;
  };

  struct Ids {
    std::uint64_t first;
    std::uint64_t last;
  };

  explicit FlightRecorder(std::size_t capacity = kCapacity);

  Recording begin(const CallRecord& call);

  // Whether begin() records, which it does from the start: for measuring what that costs.
  void set_on(bool on) { on_.store(on, std::memory_order_relaxed); }

  // The records with an id from `since` on that are still there, in order of ids.
  std::vector<Record> records(std::uint64_t since = 1) const;
  // The ids of the operations that began and still have their place; from 1 to 0: none began.
  Ids held() const;

  // The number by which events name the group. Closed groups are forgotten, the oldest first, when
  // there are many.
  std::uint32_t add_group(Group group);
  void close_group(std::uint32_t number);
  void note_failure(std::uint32_t number, const std::string& why);
  std::map<std::uint32_t, Group> groups() const;
  // Of this process, as its latest group says; -1 before the first.
  std::int64_t global_rank() const;

  // The number of a place in the program: lines of text, innermost first. The same number for the
  // same text; 0 when there are too many.
  std::uint32_t add_site(const std::string& text);
  std::map<std::uint32_t, std::string> sites() const;

 private:
  friend class Recording;
  static constexpr std::size_t kWords = sizeof(CallRecord) / sizeof(std::uint64_t);
  using Words = std::array<std::uint64_t, kWords>;

  struct alignas(64) Slot {
    std::atomic<std::uint64_t> version{0};  // twice the id of what it holds, and one while begin() writes
    // The id until it is so far, then kHappened, the time, and for the end the result. So a change
    // for an operation whose place went to another cannot succeed.
    std::atomic<std::uint64_t> posted{0};
    std::atomic<std::uint64_t> awaited{0};
    std::atomic<std::uint64_t> ended{0};
    std::array<std::atomic<std::uint64_t>, kWords> words{};
  };
  static_assert(sizeof(Slot) == 128);

  Slot& slot(std::uint64_t id) const { return slots_[id % capacity_]; }
  static bool lock(Slot& slot, std::uint64_t id);
  void count_error(std::uint64_t id);
  static std::optional<Event> read(const Slot& slot, std::uint64_t id);

  const std::size_t capacity_;
  const std::unique_ptr<Slot[]> slots_;
  std::atomic<std::uint64_t> next_{0};
  std::atomic<bool> on_{true};

  mutable Mutex mutex_;  // groups and sites are made, read and fail by many threads, and rarely
  std::uint32_t last_group_ TUCC_GUARDED_BY(mutex_) = 0;
  std::int64_t global_rank_ TUCC_GUARDED_BY(mutex_) = -1;
  std::map<std::uint32_t, Group> groups_ TUCC_GUARDED_BY(mutex_);
  std::map<std::string, std::uint32_t> sites_ TUCC_GUARDED_BY(mutex_);
};

// That of this process. Never destroyed: threads may outlive static destruction.
FlightRecorder& recorder();

inline std::int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace torch_ucc::trace
