#include "shm/arena.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace torch_ucc::shm {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kGroups = 65536;
// Of the file. Memory that is never touched costs nothing.
constexpr std::size_t kBytes = std::size_t{64} << 30U;

constexpr std::size_t align(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

enum class Mapped : std::uint32_t { not_yet, all, not_all };

}  // namespace

// The beginning of the memory of each process.
struct Arena::Head {
  std::uint64_t key = 0;  // of SharedMemory
  std::atomic<Mapped> mapped{Mapped::not_yet};
  std::array<std::atomic<State>, kGroups> states{};  // by number of the group
};

Arena::Arena() : own_("torch_ucc_arena", kBytes) {}

std::size_t Arena::slot_bytes(std::size_t ranks) {
  constexpr std::size_t kKilo = 1024;
  return std::max(std::clamp(ranks * 64 * kKilo, 128 * kKilo, 256 * kKilo), align(ranks * 2 * kKilo));
}

void Arena::map(std::uint64_t self, const std::vector<Neighbour>& neighbours) {
  self_ = self;
  neighbours_in_all_ = neighbours.size();
  slot_bytes_ = slot_bytes(neighbours.size() + 1);
  faces_ = std::min(kGroups, (kBytes - offset_of(0)) / face_bytes());
  const std::size_t mapped = offset_of(0) + faces_ * face_bytes();
  own_.trim(mapped);
  for (const Neighbour& neighbour : neighbours) {
    std::optional<SharedMemory> memory = SharedMemory::of_peer(neighbour.address, kBytes, mapped, SharedMemory::Access::read);
    if (!memory) {
      missing_ = neighbour.name;
      break;
    }
    neighbours_.emplace(neighbour.position, *std::move(memory));
  }
  static_cast<Head*>(own_.data())->mapped.store(missing_.empty() ? Mapped::all : Mapped::not_all, std::memory_order_release);
}

std::optional<bool> Arena::is_common() const {
  if (!missing_.empty()) {
    return false;
  }
  bool all = true;
  for (const auto& [position, memory] : neighbours_) {
    const Mapped mapped = static_cast<const Head*>(memory.data())->mapped.load(std::memory_order_acquire);
    if (mapped == Mapped::not_all) {
      return false;
    }
    all = all && mapped == Mapped::all;
  }
  return all ? std::optional(true) : std::nullopt;
}

std::string Arena::why_not() const {
  return missing_.empty() ? "another rank on this host cannot map the memory of all ranks there"
                          : "the memory of " + missing_ + " cannot be mapped here";
}

std::size_t Arena::face_bytes() const { return kPage + kDepth * slot_bytes_; }

std::size_t Arena::offset_of(std::uint16_t id) const {
  return align(sizeof(Head)) + (neighbours_in_all_ + 1) * MailBox::total_bytes() + id * face_bytes();
}

std::size_t Arena::place_of(std::uint64_t position) const {
  const auto before = std::distance(neighbours_.begin(), neighbours_.lower_bound(position));
  return static_cast<std::size_t>(before) + (self_ < position ? 1 : 0);
}

MailBox* Arena::box_in(const SharedMemory& memory, std::uint64_t reader) const {
  return reinterpret_cast<MailBox*>(static_cast<char*>(memory.data()) + align(sizeof(Head)) +
                                    place_of(reader) * MailBox::total_bytes());
}

Arena::Boxes Arena::boxes_with(std::uint64_t position) {
  return {box_in(own_, position), box_in(neighbours_.at(position), self_)};
}

Board::Place Arena::place_in(const SharedMemory& memory, std::uint16_t id) const {
  char* const face = static_cast<char*>(memory.data()) + offset_of(id);
  return {reinterpret_cast<Face*>(face), face + kPage, &static_cast<Head*>(memory.data())->states[id]};
}

std::shared_ptr<Board> Arena::open(std::uint16_t id, const std::vector<std::uint64_t>& positions, int rank, Bells bells,
                                   std::shared_ptr<FailureDomain> domain) {
  static_assert(sizeof(Face) <= kPage);
  if (id >= faces_ || is_common() != std::optional(true)) {
    return nullptr;
  }
  {
    const MutexLock lock(mutex_);
    give_back();
  }
  std::vector<Board::Place> places;
  places.reserve(positions.size());
  for (const std::uint64_t position : positions) {
    const auto neighbour = neighbours_.find(position);
    if (position != self_ && neighbour == neighbours_.end()) {
      return nullptr;
    }
    places.push_back(place_in(position == self_ ? own_ : neighbour->second, id));
  }
  return std::make_shared<Board>(std::move(places), rank, slot_bytes_, std::move(bells), std::move(domain));
}

void Arena::close(std::uint16_t id, const std::shared_ptr<Board>& board) {
  board->set_state(State::left);
  const MutexLock lock(mutex_);
  closed_.push_back({id, board});
  give_back();
}

void Arena::give_back() {
  std::erase_if(closed_, [&](const Closed& closed) {
    if (!closed.board->is_over()) {
      return false;
    }
    own_.discard(offset_of(closed.id), face_bytes());
    return true;
  });
}

}  // namespace torch_ucc::shm
