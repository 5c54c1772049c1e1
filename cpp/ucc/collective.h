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

#include "base/part.h"
#include "base/status.h"
#include "progress/op.h"
#include "ucc/team.h"

namespace torch_ucc {

// Fills the buffers of an operation and empties them piece by piece, while the operation is in
// flight. Collective calls both functions with the baton, so they must not block. An error that
// they return must be one of the transport. It ends the operation.
class PieceFlow {
 public:
  PieceFlow() = default;
  virtual ~PieceFlow() = default;
  PieceFlow(const PieceFlow&) = delete;
  PieceFlow& operator=(const PieceFlow&) = delete;

  // Returns ok if the buffers hold what `piece` sends, and nothing while they do not. Called for
  // the pieces in order, for each piece until it returns a value; the call may be repeated.
  virtual std::optional<Status> arrived(std::size_t piece) = 0;
  // The buffers hold what `piece` received, and the network is done with that part of the buffers.
  // Called at most once for each piece, in order.
  virtual Status ended(std::size_t piece) = 0;
};

// How much data an operation moves, and how it is cut into pieces. An operation can be cut if its
// buffers are worked on element by element. All ranks must cut in the same way, or the pieces do
// not match.
struct Pieces {
  std::size_t total = 0;         // elements of each part
  std::size_t count = 0;         // elements of a piece; 0: the operation is not cut
  std::size_t element_size = 1;  // bytes
  unsigned window = 1;           // pieces in flight, 1..kMaxWindow
  unsigned own_part = 0;         // see in_place

  // The caller's memory that is sent and received, if UCC must not see it. UCC then works in a
  // bounce buffer. There, the shares that a piece has of the parts lie one after the other. If the
  // operation is cut, each part has `total` elements. A side without parts uses the memory that the
  // arguments for UCC name.
  std::vector<Part> sources{};
  std::vector<Part> destinations{};
  // The collective runs in place: the data to send is copied into the bounce buffer of the result,
  // to the place of part `own_part`.
  bool in_place = false;

  // Fills and empties the buffers while the operation is in flight; must live as long as the
  // buffers. Null: the buffers are filled before the operation starts. The flow only decides when
  // this rank posts a piece. It must not change how the operation is cut, which is the same on all
  // ranks.
  PieceFlow* flow = nullptr;

  static constexpr unsigned kMaxWindow = 8;

  std::size_t number() const { return count == 0 ? 1 : (total + count - 1) / count; }
  // The number of elements of a piece, and the offset of the piece in each part, in bytes.
  std::size_t length_of(std::size_t piece) const { return std::min(count, total - piece * count); }
  std::size_t offset_of(std::size_t piece) const { return piece * count * element_size; }
  // How many bytes the largest piece has in all parts of one side together.
  std::size_t bytes_of(const std::vector<Part>& side) const;
  // How many bytes the largest piece moves.
  std::size_t bytes_of_piece() const {
    return std::max({element_size * (count == 0 ? total : count), bytes_of(sources), bytes_of(destinations)});
  }
};

// One UCC collective on a team. `pieces` names the memory of the caller. All other memory that
// `args` points to must live until the operation is destroyed.
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
  std::uint64_t errors_before_ = 0;  // ErrorLog::count() before the first piece was posted
  std::uint64_t errors_seen_ = 0;    // ErrorLog::count() when the current bounce buffers were new
  bool doubtful_ = false;
  // UCC may still use requests that it reports as ended
  bool leaves_requests_ = false;
  // Such a request may still use the bounce buffers
  bool bounce_buffers_are_lost_ = false;
  // Of pieces ended_..posted_, piece i at i % kMaxWindow
  std::array<ucc_coll_req_h, Pieces::kMaxWindow> requests_{};
  alignas(16) std::array<char, 48> small_{};  // the bounce buffers, if they fit
  // Else the bounce buffers; those of piece i at i % window
  std::unique_ptr<char[]> large_;
  // A copy of the sources, if the operation goes on after its caller got its memory back.
  std::unique_ptr<char[]> left_;
  Status status_;
};

}  // namespace torch_ucc
