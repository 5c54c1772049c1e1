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

  // Both are called with the baton and may not block; an error, always one of the transport, ends
  // the operation. Whether the buffers hold what this piece sends: nothing while they do not. Asked
  // again until they do, piece after piece.
  virtual std::optional<Status> arrived(std::size_t piece) = 0;
  // The buffers hold what this piece brought, and the network is done with that part of them. Once
  // for each, piece after piece.
  virtual Status ended(std::size_t piece) = 0;
};

// Memory of the caller: all that one rank sends to or receives from another one, or from all.
struct Part {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// How much is moved, and how to cut it: an operation whose buffers are worked on element by element
// can go in pieces. The same on every rank, or the pieces do not match.
struct Pieces {
  std::size_t total = 0;         // elements of each part
  std::size_t count = 0;         // elements of a piece; 0: in one piece
  std::size_t element_size = 1;  // bytes
  unsigned window = 1;           // pieces in flight, 1..kMaxWindow
  unsigned own_part = 0;         // see in_place

  // What the caller's memory sends and receives, if UCC may not see it: UCC is then given memory of
  // the operation, a bounce buffer, in which the shares that a piece has of the parts lie one after
  // the other. With pieces, all parts have `total` elements. A side without parts is memory of the
  // operation already: what the arguments say.
  std::vector<Part> sources{};
  std::vector<Part> destinations{};
  // What is sent lies in the bounce buffer of what is received, as UCC's collectives in place want
  // it: at the place of part `own_part`.
  bool in_place = false;

  // Who fills and empties the buffers meanwhile; it lives as long as they do. Null: they are filled
  // before the operation starts. What it makes wait depends on this rank alone: how the operation
  // is cut does not.
  PieceFlow* flow = nullptr;

  static constexpr unsigned kMaxWindow = 8;

  std::size_t number() const { return count == 0 ? 1 : (total + count - 1) / count; }
  // Elements of a piece, and the bytes before it.
  std::size_t length_of(std::size_t piece) const { return std::min(count, total - piece * count); }
  std::size_t offset_of(std::size_t piece) const { return piece * count * element_size; }
  // The most bytes that a piece has of all parts of one side.
  std::size_t bytes_of(const std::vector<Part>& side) const;
  // The most bytes that a piece moves.
  std::size_t bytes_of_piece() const {
    return std::max({element_size * (count == 0 ? total : count), bytes_of(sources), bytes_of(destinations)});
  }
};

// Memory of the caller is named by `pieces`; what else is behind `args` lives until the operation
// was dropped.
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
  bool is_drained(LoopToken& token) final;
  FailureDomain& domain() const final { return team_->domain(); }

 protected:
  void on_taken_back(After after) noexcept override;

 private:
  // The bounce buffers of a piece, by side; null where a side has none.
  struct BounceBuffers {
    char* sent = nullptr;
    char* received = nullptr;
  };

  void post_pieces(LoopToken& token);
  bool post_next(LoopToken& token);
  bool load(std::size_t piece);
  void store(std::size_t piece);
  BounceBuffers bounce_buffers_of(std::size_t piece);
  void move(const Part& part, std::size_t piece, char*& bounce, bool into_bounce) const;
  void end_first(LoopToken& token);
  std::size_t bytes_of_room() const;
  std::unique_ptr<char[]> make_large(std::size_t each) const;
  bool renew_bounce_buffers();
  bool all_posted() const { return posted_ == total_; }

  const std::shared_ptr<UccTeam> team_;
  const ucc_coll_args_t args_;
  Pieces pieces_;
  const std::size_t total_;  // pieces
  std::size_t posted_ = 0;
  std::size_t ended_ = 0;
  std::uint64_t ticket_ = 0;
  std::atomic<bool> begun_{false};
  std::uint64_t errors_before_ = 0;  // in UCC's log, before it began
  std::uint64_t errors_seen_ = 0;    // when its bounce buffers were new
  bool doubtful_ = false;
  bool leaves_requests_ = false;                               // that UCC may still use, though it says not
  bool bounce_buffers_are_lost_ = false;                       // theirs
  std::array<ucc_coll_req_h, Pieces::kMaxWindow> requests_{};  // of pieces ended_..posted_, piece i at i % kMaxWindow
  alignas(16) std::array<char, 48> small_{};                   // the bounce buffers, if they fit
  std::unique_ptr<char[]> large_;                              // else; those of piece i at i % window
  std::unique_ptr<char[]> left_;                               // what was still to be sent when the caller got its memory back
  Status status_;
};

}  // namespace torch_ucc
