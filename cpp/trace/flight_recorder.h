// The last operations of this process. They are always recorded, and can be read while all other
// threads are stuck.
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

// Refers to the call record of one operation. A default-constructed Recording refers to no record.
// All members may be called from any thread. They have no effect without a record, or after a later
// operation has taken its slot. Only the first call of each of posted(), awaited() and ended() has
// an effect.
class Recording {
 public:
  Recording() = default;
  void posted() const;
  void awaited(Clock::time_point since) const;
  void ended(StatusCode result) const;
  // Returns the record; nothing if there is none, or no longer, or if a thread is writing it.
  std::optional<Event> event() const;

 private:
  friend class FlightRecorder;
  Recording(FlightRecorder* recorder, std::uint64_t id) : recorder_(recorder), id_(id) {}
  FlightRecorder* recorder_ = nullptr;
  std::uint64_t id_ = 0;
};

// A ring of slots, one for each operation. Recording costs a few stores: it neither allocates, nor
// formats text, nor takes a mutex. Each slot has a version, which is odd while a thread writes the
// slot; a reader reads the slot again if the version has changed meanwhile. All members may be
// called from any thread.
class FlightRecorder {
 public:
  // 1 MB; the smallest operations fill the ring in 5 to 30 ms
  static constexpr std::size_t kCapacity = 8192;

  struct Group {
    std::string name;
    int rank = 0;
    std::vector<std::int64_t> global_ranks;  // by rank of the group
    bool closed = false;
    // Why the group failed first; empty: it has not failed
    std::string failure;
    std::map<std::string, std::uint64_t> errors;  // how many operations failed, by name
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

  // Turns recording by begin() off or on again, to measure its cost. It is on from the start.
  void set_on(bool on) { on_.store(on, std::memory_order_relaxed); }

  // Returns the records with an id from `since` on that the ring still holds, in the order of ids.
  // Leaves out a record that another thread is writing.
  std::vector<Record> records(std::uint64_t since = 1) const;
  // Returns the range of ids that the ring holds; 1 to 0 if no operation has begun.
  Ids held() const;

  // Returns the number that stands for the group in call records. The recorder keeps 64 closed
  // groups at most and forgets the oldest first.
  std::uint32_t add_group(Group group);
  void close_group(std::uint32_t number);
  void note_failure(std::uint32_t number, const std::string& why);
  std::map<std::uint32_t, Group> groups() const;
  // Returns the global rank of this process in the group that was added last; -1 before the first.
  std::int64_t global_rank() const;

  // Returns the number of a call site. `text` is its stack, one frame a line, innermost first.
  // Equal texts have equal numbers. Returns 0 for a new text when 4096 are stored.
  std::uint32_t add_site(const std::string& text);
  std::map<std::uint32_t, std::string> sites() const;

 private:
  friend class Recording;
  static constexpr std::size_t kWords = sizeof(CallRecord) / sizeof(std::uint64_t);
  using Words = std::array<std::uint64_t, kWords>;

  struct alignas(64) Slot {
    // Twice the id of its record, plus one while begin() writes
    std::atomic<std::uint64_t> version{0};
    // Each holds the id until the event happens, then the bit kHappened, the time and, for `ended`,
    // the result. An event is stored by comparing with the id, so it cannot reach the record of a
    // later operation.
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

  mutable Mutex mutex_;  // many threads use the groups and sites, but rarely
  std::uint32_t last_group_ TUCC_GUARDED_BY(mutex_) = 0;
  std::int64_t global_rank_ TUCC_GUARDED_BY(mutex_) = -1;
  std::map<std::uint32_t, Group> groups_ TUCC_GUARDED_BY(mutex_);
  std::map<std::string, std::uint32_t> sites_ TUCC_GUARDED_BY(mutex_);
};

// Returns the recorder of this process. It is never destroyed, since threads may outlive static
// destruction.
FlightRecorder& recorder();

inline std::int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace torch_ucc::trace
