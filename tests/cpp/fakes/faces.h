// Ranks that share memory within one process: the boards of one group, one for each rank.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "progress/bell.h"
#include "shm/board.h"

namespace torch_ucc::shm {

class Faces {
 public:
  // Every rank rings all of `bells`.
  explicit Faces(std::size_t ranks, std::size_t slot_bytes = 1024, const std::vector<const Bell*>& bells = {})
      : slot_bytes_(slot_bytes) {
    std::vector<Board::Place> places;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      Memory& memory = memories_.emplace_back();
      memory.slots = std::make_unique<char[]>(kDepth * slot_bytes);
      places.push_back({&memory.face, memory.slots.get(), &memory.state});
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      domains_.push_back(std::make_shared<FailureDomain>("group"));
      boards_.push_back(std::make_shared<Board>(places, static_cast<int>(rank), slot_bytes, Bells{bells, true}, domains_.back()));
    }
  }

  std::size_t ranks() const { return boards_.size(); }
  std::size_t slot_bytes() const { return slot_bytes_; }
  const std::shared_ptr<Board>& board(std::size_t rank) const { return boards_[rank]; }
  FailureDomain& domain(std::size_t rank) const { return *domains_[rank]; }
  Face& face(std::size_t rank) { return memories_[rank].face; }
  char* slots(std::size_t rank) { return memories_[rank].slots.get(); }

 private:
  struct Memory {
    Face face;
    std::unique_ptr<char[]> slots;
    std::atomic<State> state{State::open};
  };

  const std::size_t slot_bytes_;
  std::deque<Memory> memories_;  // must not move
  std::vector<std::shared_ptr<FailureDomain>> domains_;
  std::vector<std::shared_ptr<Board>> boards_;
};

}  // namespace torch_ucc::shm
