// What one rank does for one piece of a collective that goes in levels.
#pragma once

#include <ucc/api/ucc.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "base/deadline.h"
#include "hosts/levels.h"
#include "progress/op.h"
#include "shm/movement.h"

namespace torch_ucc::hosts {

struct Piece {
  // Two stages on the board of the host surround one in the row. A stage may be empty.
  static constexpr std::size_t kStages = 3;
  enum Stage : std::size_t { on_host, in_row, on_host_again };

  // A reduction that follows the stage in the row: that of `sources`, one from each host.
  struct Sum {
    std::vector<const void*> sources;
    void* to = nullptr;
    std::size_t bytes = 0;
    bool is_result = false;  // whether `to` is memory of the caller
  };

  std::unique_ptr<char[]> memory;                               // of the operation; UCC works only there
  std::array<std::vector<std::unique_ptr<Op>>, kStages> steps;  // by stage, one after the other
  Sum sum;

  std::size_t stage = 0;   // the first one that has not ended
  bool has_begun = false;  // whether it has begun
  std::size_t ended = 0;   // how many of its steps have ended
  // Since when the next step has ended, in doubt. The piece does not go on meanwhile.
  std::optional<Clock::time_point> in_doubt_since;

  bool has_ended() const { return stage == kStages; }
  // Whether UCC is done with the memory.
  bool is_drained(LoopToken& token) const;
};

// What UCC reduces between hosts, if it does.
struct UccReduction {
  ucc_datatype_t type = UCC_DT_UINT8;
  ucc_reduction_op_t op = UCC_OP_SUM;
};
// Whether UCC reduces between hosts. If not, it only moves bytes, and the kernels of shm/kernels.h reduce
// what comes from the hosts, in their order.
bool is_reduced_by_ucc(shm::Movement::Kind kind, std::size_t hosts);

// How a collective is cut into pieces; the same on all ranks.
//
//  barrier                        one piece
//  all_reduce, reduce, broadcast  a piece is a part of the data, and has a share for each row
//  all_gather, reduce_scatter     a piece has a slice of the data of each rank
class Cut {
 public:
  // `movement` is the collective as the whole group sees it, with a kind of those above.
  Cut(const Levels& levels, const shm::Movement& movement, const UccReduction& ucc);

  std::size_t pieces() const { return pieces_; }
  // The bytes of Piece::memory.
  std::size_t room() const { return room_; }
  // Makes the steps of a piece. `memory` has room() bytes.
  std::unique_ptr<Piece> piece(std::size_t number, const Levels& levels, const shm::Movement& movement,
                               std::unique_ptr<char[]> memory) const;

 private:
  const UccReduction ucc_;
  std::size_t unit_ = 0;  // bytes of each piece but the last, of the data of one rank
  std::size_t pieces_ = 1;
  std::size_t room_ = 0;
};

}  // namespace torch_ucc::hosts
