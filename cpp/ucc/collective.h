// One collective on a team, whole or in pieces.
#pragma once

#include <ucc/api/ucc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "progress/op.h"
#include "ucc/team.h"

namespace torch_ucc {

// Fills the buffers of an operation and empties them while it goes on, piece by piece.
class PieceFlow {
 public:
  PieceFlow() = default;
  virtual ~PieceFlow() = default;
  PieceFlow(const PieceFlow&) = delete;
  PieceFlow& operator=(const PieceFlow&) = delete;

  // Both are called with the baton and may not block; an error, always one of the transport, ends the operation.
  // Whether the buffers hold what this piece sends: nothing while they do not. Asked again until they do, piece after piece.
  virtual std::optional<Status> arrived(std::size_t piece) = 0;
  // The buffers hold what this piece brought, and the network is done with that part of them. Once for each, piece after piece.
  virtual Status ended(std::size_t piece) = 0;
};

// How much is moved, and how to cut it: an operation whose buffers are worked on element by element can go in pieces. The same
// on every rank, or the pieces do not match.
struct Pieces {
  std::size_t total = 0;         // elements in all
  std::size_t count = 0;         // elements of a piece; 0: in one piece
  std::size_t element_size = 1;  // bytes
  unsigned window = 1;           // pieces in flight, 1..kMaxWindow

  // The parts of all ranks, `total` elements each, wherever they lie, if a piece has its share of each part: of what is sent, or
  // of what is received. UCC is given memory of ours then, where the shares lie one after the other.
  std::vector<const void*> sources{};
  std::vector<void*> destinations{};

  // Who fills and empties the buffers meanwhile; it lives as long as they do. Null: they are filled before the operation starts.
  // What it makes wait depends on this rank alone: how the operation is cut does not.
  PieceFlow* flow = nullptr;

  static constexpr unsigned kMaxWindow = 8;

  std::size_t number() const { return count == 0 ? 1 : (total + count - 1) / count; }
  // Elements of a piece, and the bytes before it.
  std::size_t length_of(std::size_t piece) const { return std::min(count, total - piece * count); }
  std::size_t offset_of(std::size_t piece) const { return piece * count * element_size; }
  // The most bytes that a piece moves.
  std::size_t bytes_of_piece() const {
    const auto parts = std::max<std::size_t>({1, sources.size(), destinations.size()});
    return element_size * (count == 0 ? total : parts * count);
  }
};

// The buffers behind `args` must live until the operation ended; a request that never ends is leaked.
class Collective : public Op {
 public:
  Collective(std::shared_ptr<UccTeam> team, const ucc_coll_args_t& args, Pieces pieces);

  Status start(LoopToken& token) override;
  State poll(LoopToken& token) final;
  Status transport_status() const final { return status_; }
  Status doubt() const final;
  std::string waits_for() const final;
  void announce() const final { team_->ring_members(); }
  bool is_announced() const final { return team_->all_members_ring(); }
  microseconds patience() const final;
  bool starts_slowly() const final;
  Scope& scope() const final { return team_->scope(); }

 private:
  void post_pieces(LoopToken& token);
  Status post_next(LoopToken& token);
  char* room_for(std::size_t piece);
  void pack(std::size_t piece);
  void unpack(std::size_t piece);
  bool all_posted() const { return posted_ == total_; }

  const std::shared_ptr<UccTeam> team_;
  const ucc_coll_args_t args_;
  const Pieces pieces_;
  const std::size_t total_;  // pieces
  std::size_t posted_ = 0;
  std::size_t ended_ = 0;
  std::uint64_t ticket_ = 0;
  std::atomic<bool> begun_{false};
  std::uint64_t errors_before_ = 0;  // in UCC's log, before it began
  bool doubtful_ = false;
  std::array<ucc_coll_req_h, Pieces::kMaxWindow> requests_{};  // of pieces ended_..posted_, piece i at i % kMaxWindow
  std::unique_ptr<char[]> shares_;                             // of the parts, piece i's at i % window
  Status status_;
};

}  // namespace torch_ucc
