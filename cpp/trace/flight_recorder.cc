#include "trace/flight_recorder.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "trace/json.h"

namespace torch_ucc::trace {
namespace {

constexpr std::size_t kClosedGroups = 64;
constexpr std::size_t kSites = 4096;

constexpr std::uint64_t kHappened = 1ULL << 63U;
constexpr unsigned kResultBits = 4;  // below the time, whose 59 bits last for 18 years of uptime

// Stores that the event has happened. Returns false if it was stored before, or if the slot no
// longer belongs to `id`.
bool happened(std::atomic<std::uint64_t>& word, std::uint64_t id, StatusCode result, Clock::time_point when = Clock::now()) {
  const auto now = static_cast<std::uint64_t>(nanoseconds(when));
  return word.compare_exchange_strong(id, kHappened | now << kResultBits | static_cast<std::uint64_t>(result),
                                      std::memory_order_release, std::memory_order_relaxed);
}

// 0: not yet.
std::int64_t time_in(std::uint64_t word) {
  return (word & kHappened) == 0 ? 0 : static_cast<std::int64_t>((word & ~kHappened) >> kResultBits);
}

// A report for other hosts has no use for call sites, which may take megabytes.
std::string without_sites(const std::string& journal) {
  std::string kept;
  for (std::size_t at = 0; at < journal.size();) {
    const std::size_t end = std::min(journal.find('\n', at), journal.size() - 1) + 1;
    if (journal.compare(at, 5, "site/") != 0) {
      kept.append(journal, at, end - at);
    }
    at = end;
  }
  return kept;
}

std::string group_key(std::uint32_t number) { return "group/" + std::to_string(number); }

// When the ring comes back to a slot, the slot is no longer in the nearest cache.
template <typename Slot>
void prefetch(Slot& slot) {
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; at < sizeof(Slot); at += kLine) {
    __builtin_prefetch(reinterpret_cast<char*>(&slot) + at, 1);
  }
}

}  // namespace

void Recording::posted() const {
  if (recorder_ != nullptr) {
    happened(recorder_->slot(id_).posted, id_, StatusCode::ok);
  }
}

void Recording::awaited(Clock::time_point since) const {
  if (recorder_ != nullptr) {
    happened(recorder_->slot(id_).awaited, id_, StatusCode::ok, since);
  }
}

void Recording::ended(StatusCode result) const {
  if (recorder_ != nullptr && happened(recorder_->slot(id_).ended, id_, result) && result != StatusCode::ok) {
    recorder_->count_error(id_);
  }
}

std::optional<Event> Recording::event() const {
  return recorder_ == nullptr ? std::nullopt : FlightRecorder::read(recorder_->slot(id_), id_);
}

FlightRecorder::FlightRecorder(std::size_t capacity)
    : capacity_(capacity),
      memory_("torch-ucc-recorder", bytes(capacity)),
      slots_(slots_in(memory_.data())),
      last_(head().last),
      journal_(reinterpret_cast<char*>(slots_ + capacity), kJournalBytes) {
  Head& head = this->head();
  head.pid = static_cast<std::uint64_t>(::getpid());
  head.capacity = capacity;
  head.journal_bytes = kJournalBytes;
  head.journal_at = sizeof(Head) + capacity * sizeof(Slot);
  head.format.store(kFormat, std::memory_order_release);
}

// Takes the slot, so that the caller may write the record of `id`. Returns false if the slot
// belongs to a later operation.
bool FlightRecorder::lock(Slot& slot, std::uint64_t id) {
  std::uint64_t version = slot.version.load(std::memory_order_relaxed);
  while (version / 2 <= id) {
    if (version % 2 != 0) {  // another thread is writing, which takes a few stores
      ::sched_yield();
      version = slot.version.load(std::memory_order_relaxed);
    } else if (slot.version.compare_exchange_weak(version, 2 * id + 1, std::memory_order_acq_rel, std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

// The words are stored with release and loaded with acquire instead of fences, which the thread
// sanitizer does not support. A reader that sees a word of a later write then sees the odd version
// of that write, too.
Recording FlightRecorder::begin(const CallRecord& call) {
  if (!on_.load(std::memory_order_relaxed)) {
    return {};
  }
  const std::uint64_t id = last_.fetch_add(1, std::memory_order_relaxed) + 1;
  Slot& slot = this->slot(id);
  if (!lock(slot, id)) {
    return {};
  }
  const auto words = std::bit_cast<Words>(call);
  for (std::size_t i = 0; i < kWords; ++i) {
    slot.words[i].store(words[i], std::memory_order_release);
  }
  slot.posted.store(id, std::memory_order_release);
  slot.awaited.store(id, std::memory_order_release);
  slot.ended.store(id, std::memory_order_release);
  slot.version.store(2 * id, std::memory_order_release);
  prefetch(this->slot(id + 1));
  return {this, id};
}

void FlightRecorder::count_error(std::uint64_t id) {
  const std::optional<Event> event = read(slot(id), id);
  const MutexLock lock(mutex_);
  if (const auto it = event ? groups_.find(event->group) : groups_.end(); it != groups_.end()) {
    ++it->second.errors[event->op];
    tell(event->group);
  }
}

// Returns nothing if the slot holds another operation, or not yet this one.
std::optional<FlightRecorder::Copy> FlightRecorder::copy(const Slot& slot, std::uint64_t id, int tries) {
  // If the kernel stopped the writer in its slot, this record is left out
  for (int i = 0; i < tries; ++i) {
    const std::uint64_t before = slot.version.load(std::memory_order_acquire);
    if (before / 2 != id) {
      return std::nullopt;
    }
    if (before % 2 == 0) {
      Copy copy{};
      copy.version = before;
      for (std::size_t word = 0; word < kWords; ++word) {
        copy.words[word] = slot.words[word].load(std::memory_order_acquire);
      }
      copy.posted = slot.posted.load(std::memory_order_acquire);
      copy.awaited = slot.awaited.load(std::memory_order_acquire);
      copy.ended = slot.ended.load(std::memory_order_acquire);
      if (slot.version.load(std::memory_order_relaxed) == before) {
        return copy;
      }
    }
    ::sched_yield();
  }
  return std::nullopt;
}

Event FlightRecorder::event_in(const Copy& copy) {
  constexpr std::uint64_t kResult = (1U << kResultBits) - 1;
  const std::int64_t ended_ns = time_in(copy.ended);
  return Event{std::bit_cast<CallRecord>(copy.words), time_in(copy.posted), ended_ns, time_in(copy.awaited),
               ended_ns == 0 ? StatusCode::ok : static_cast<StatusCode>(copy.ended & kResult)};
}

std::optional<Event> FlightRecorder::read(const Slot& slot, std::uint64_t id) {
  const std::optional<Copy> copy = FlightRecorder::copy(slot, id);
  return copy ? std::optional(event_in(*copy)) : std::nullopt;
}

std::string FlightRecorder::extract(const std::string& address, std::size_t recent) {
  const std::optional<SharedMemory> memory =
      SharedMemory::of_peer(address, bytes(kCapacity), bytes(kCapacity), SharedMemory::Access::read);
  if (!memory || static_cast<const Head*>(memory->data())->format.load(std::memory_order_acquire) != kFormat) {
    return "";
  }
  const Slot* const slots = slots_in(memory->data());
  const std::uint64_t last = static_cast<const Head*>(memory->data())->last.load(std::memory_order_acquire);
  const std::uint64_t first = last > kCapacity ? last - kCapacity + 1 : 1;
  std::string records;
  std::set<std::pair<std::uint32_t, bool>> seen;  // groups, and whether their last message
  for (std::uint64_t id = last; id >= first; --id) {
    const std::optional<Copy> copy = FlightRecorder::copy(slots[id % kCapacity], id, 2);  // a reader must not wait
    if (!copy) {
      continue;
    }
    const Event event = event_in(*copy);
    const bool is_last = seen.emplace(event.group, event.is_message).second;
    if (is_last || event.ended_ns == 0 || last - id < recent) {
      records.append(reinterpret_cast<const char*>(&*copy), sizeof(Copy));
    }
  }
  const std::string journal = without_sites(Journal::read(reinterpret_cast<const char*>(slots + kCapacity), kJournalBytes));
  const std::uint64_t size = journal.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + journal + records;
}

FlightRecorder::Ids FlightRecorder::held() const {
  const std::uint64_t last = last_.load(std::memory_order_acquire);
  return {last > capacity_ ? last - capacity_ + 1 : 1, last};
}

std::vector<FlightRecorder::Record> FlightRecorder::records(std::uint64_t since) const {
  const auto [first, last] = held();
  std::vector<Record> found;
  for (std::uint64_t id = std::max(since, first); id <= last; ++id) {
    if (const std::optional<Event> event = read(slot(id), id)) {
      found.push_back({id, *event});
    }
  }
  return found;
}

std::string FlightRecorder::to_json(std::uint32_t number, const Group& group, const std::string& ranks) {
  Json errors('{');
  for (const auto& [op, count] : group.errors) {
    errors.number(op, count);
  }
  Json json('{');
  json.number("number", number).text("name", group.name).number("rank", group.rank).field("ranks", ranks);
  json.field("closed", group.closed ? "true" : "false").text("failure", group.failure);
  return json.field("errors", errors.end()).number("context", group.context).end();
}

// Writes what has changed of a group to the journal.
void FlightRecorder::tell(std::uint32_t number) {
  const Group& group = groups_.at(number);
  journal_.set(group_key(number), to_json(number, group, runs_of(group.global_ranks)));
}

std::uint32_t FlightRecorder::add_group(Group group) {
  const MutexLock lock(mutex_);
  global_rank_ = group.global_ranks.at(static_cast<std::size_t>(group.rank));
  groups_.emplace(++last_group_, std::move(group));
  tell(last_group_);
  return last_group_;
}

void FlightRecorder::close_group(std::uint32_t number) {
  const MutexLock lock(mutex_);
  if (const auto it = groups_.find(number); it != groups_.end()) {
    it->second.closed = true;
    tell(number);
  }
  const auto closed = [](const auto& each) { return each.second.closed; };
  if (static_cast<std::size_t>(std::count_if(groups_.begin(), groups_.end(), closed)) > kClosedGroups) {
    const auto oldest = std::find_if(groups_.begin(), groups_.end(), closed);
    journal_.remove(group_key(oldest->first));
    groups_.erase(oldest);
  }
}

void FlightRecorder::note_failure(std::uint32_t number, const std::string& why) {
  const MutexLock lock(mutex_);
  if (const auto it = groups_.find(number); it != groups_.end() && it->second.failure.empty()) {
    it->second.failure = why;
    tell(number);
  }
}

void FlightRecorder::name_texts(const std::vector<const char*>& texts) {
  Json json('{');
  for (const char* text : texts) {
    json.text(std::to_string(reinterpret_cast<std::uintptr_t>(text)), text);
  }
  journal_.set("names", json.end());
}

std::map<std::uint32_t, FlightRecorder::Group> FlightRecorder::groups() const {
  const MutexLock lock(mutex_);
  return groups_;
}

std::int64_t FlightRecorder::global_rank() const {
  const MutexLock lock(mutex_);
  return global_rank_;
}

std::uint32_t FlightRecorder::add_site(const std::string& text) {
  const MutexLock lock(mutex_);
  if (const auto it = sites_.find(text); it != sites_.end()) {
    return it->second;
  }
  if (sites_.size() >= kSites) {
    return 0;
  }
  const auto number = static_cast<std::uint32_t>(sites_.size() + 1);
  sites_.emplace(text, number);
  journal_.set("site/" + std::to_string(number), json_text(text));
  return number;
}

std::map<std::uint32_t, std::string> FlightRecorder::sites() const {
  const MutexLock lock(mutex_);
  std::map<std::uint32_t, std::string> by_number;
  for (const auto& [text, number] : sites_) {
    by_number.emplace(number, text);
  }
  return by_number;
}

// The memory of a recorder is shared, so a forked child needs a recorder of its own.
FlightRecorder& recorder() {
  static std::atomic<FlightRecorder*> instance{nullptr};
  static const bool made = [] {
    instance.store(new FlightRecorder());
    ::pthread_atfork(nullptr, nullptr, [] { instance.store(new FlightRecorder()); });
    return true;
  }();
  (void)made;
  return *instance.load(std::memory_order_relaxed);
}

}  // namespace torch_ucc::trace
