// The last operations of this process. They are always recorded, and can be read while all other
// threads are stuck, also by other processes of this host.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/shared_memory.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "trace/event.h"
#include "trace/journal.h"

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
//
// Ring and journal are in memory that another process of the same user can map (SharedMemory).
// `python/torch_ucc/status/segment.py` reads it without this code: whoever changes the layout
// changes kFormat, and that file.
class FlightRecorder {
 public:
  // 1 MB; the smallest operations fill the ring in 5 to 30 ms
  static constexpr std::size_t kCapacity = 8192;
  static constexpr std::uint64_t kFormat = 1;

  struct Group {
    std::string name;
    int rank = 0;
    std::vector<std::int64_t> global_ranks;  // by rank of the group
    bool closed = false;
    // Why the group failed first; empty: it has not failed
    std::string failure;
    std::map<std::string, std::uint64_t> errors;  // how many operations failed, by name
    std::uint64_t context = 0;                    // CommContext::number()
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

  // Facts of other parts of the program. Their keys must not begin with "group/", "site/", "names".
  Journal& journal() { return journal_; }
  // Tells readers in other processes what the pointers in call records point to.
  void name_texts(const std::vector<const char*>& texts);
  // Returns the text with which another process on this host opens the memory (SharedMemory); empty
  // if none can.
  std::string address() const { return memory_.address(); }

  // Returns what `torch-ucc status` needs: the journal, the records of operations that have not
  // ended, the last record of each group, and the last `recent` ones. As bytes: the size of the
  // journal as 8 bytes, the journal without call sites, and the slots. `address` is that of the recorder
  // of a process on this host, which the caller may be itself. Empty if it cannot be opened.
  static std::string extract(const std::string& address, std::size_t recent);

  // Returns the JSON of a group. `ranks` is the JSON of its global ranks.
  static std::string to_json(std::uint32_t number, const Group& group, const std::string& ranks);

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
  // The contents of a slot, with the same layout.
  struct alignas(64) Copy {
    std::uint64_t version, posted, awaited, ended;
    Words words;
  };
  static_assert(sizeof(Copy) == sizeof(Slot));

  // The beginning of the memory.
  struct alignas(64) Head {
    std::uint64_t key;                  // of SharedMemory
    std::atomic<std::uint64_t> format;  // kFormat, stored when the other members are
    std::uint64_t pid;
    std::uint64_t capacity;       // slots, which follow
    std::uint64_t journal_at;     // from the beginning of the memory
    std::uint64_t journal_bytes;  // see Journal
    std::atomic<std::uint64_t> last;
  };
  static constexpr std::size_t kJournalBytes = 16 << 20U;  // only what is used takes memory
  static constexpr std::size_t bytes(std::size_t capacity) { return sizeof(Head) + capacity * sizeof(Slot) + kJournalBytes; }
  static Slot* slots_in(void* memory) { return reinterpret_cast<Slot*>(static_cast<char*>(memory) + sizeof(Head)); }

  Head& head() const { return *static_cast<Head*>(memory_.data()); }
  Slot& slot(std::uint64_t id) const { return slots_[id % capacity_]; }
  static bool lock(Slot& slot, std::uint64_t id);
  void count_error(std::uint64_t id);
  static constexpr int kTries = 1000;
  static std::optional<Copy> copy(const Slot& slot, std::uint64_t id, int tries = kTries);
  static Event event_in(const Copy& copy);
  static std::optional<Event> read(const Slot& slot, std::uint64_t id);
  void tell(std::uint32_t number) TUCC_REQUIRES(mutex_);

  const std::size_t capacity_;
  const SharedMemory memory_;
  Slot* const slots_;                 // in memory_
  std::atomic<std::uint64_t>& last_;  // id; in memory_
  std::atomic<bool> on_{true};
  Journal journal_;  // in memory_

  mutable Mutex mutex_;  // many threads use the groups and sites, but rarely
  std::uint32_t last_group_ TUCC_GUARDED_BY(mutex_) = 0;
  std::int64_t global_rank_ TUCC_GUARDED_BY(mutex_) = -1;
  std::map<std::uint32_t, Group> groups_ TUCC_GUARDED_BY(mutex_);
  std::map<std::string, std::uint32_t> sites_ TUCC_GUARDED_BY(mutex_);
};

// Returns the recorder of this process, which a forked child does not share with its parent. It is
// never destroyed, since threads may outlive static destruction.
FlightRecorder& recorder();

inline std::int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace torch_ucc::trace
