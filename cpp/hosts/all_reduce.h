// An all_reduce of a group that spans hosts: through shared memory on each host, by UCC between them.
#pragma once

#include <ucc/api/ucc.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/part.h"
#include "base/status.h"
#include "hosts/levels.h"
#include "progress/op.h"
#include "shm/movement.h"
#include "ucc/team.h"

namespace torch_ucc::hosts {

// What is reduced, in place.
struct Reduction {
  Part memory;  // of the caller or of the operation
  std::size_t element_size = 1;
  shm::DataType type = shm::DataType::uint8;
  shm::ReduceOp op = shm::ReduceOp::sum;
  ucc_datatype_t ucc_type = UCC_DT_UINT8;  // the same in UCC's words
  ucc_reduction_op_t ucc_op = UCC_OP_SUM;
  std::size_t piece = 0;  // bytes of a piece
};

// The data is cut into pieces, and each piece into one share for each row. First the ranks of a host
// reduce the piece, each row on one rank its share. Then each row reduces its share by UCC. Last, the
// ranks of a host gather the shares. So each byte crosses the network as often as between single ranks, the
// rows use the network at the same time, and the memory works on one piece while the network works on
// another.
//
// The ranks of a host are added in the order of their ranks, and then the hosts in the order that
// UCC takes.
class AllReduce : public Op {
 public:
  // `team` is that of the whole group. Its tickets keep the collectives of the group in the order of
  // their calls; nothing else uses `levels`. The memory is used within the lease.
  AllReduce(std::shared_ptr<UccTeam> team, const Levels& levels, const Reduction& reduction);
  ~AllReduce() override;

  Status start(LoopToken& token) override;
  State poll(LoopToken& token) final;
  Status transport_status() const final { return status_; }
  Status doubt() const final { return doubt_; }
  std::string waits_for() const final;
  microseconds patience() const final { return patience_for(reduction_.memory.bytes); }
  bool starts_slowly() const final;
  void cancel(LoopToken& token) final;
  bool is_drained(LoopToken& token) final;
  FailureDomain& domain() const final { return team_->domain(); }

 protected:
  void on_taken_back(After after) noexcept override;

 private:
  // A part of the operation, by what it does.
  template <typename Operation>
  class Step;
  struct Piece;

  // How many pieces are under way at once.
  static constexpr std::size_t kWindow = 3;

  Piece& slot(std::size_t piece) { return *slots_[piece % kWindow]; }
  bool start_next(LoopToken& token);
  bool make_piece(LoopToken& token, std::size_t number);
  bool poll_piece(LoopToken& token, Piece& piece);
  template <typename Operation>
  bool begin(LoopToken& token, Step<Operation>& step);
  template <typename Operation>
  bool go_on(LoopToken& token, Step<Operation>& step);
  void fail(const Status& status);

  const std::shared_ptr<UccTeam> team_;
  const Levels levels_;
  const Reduction reduction_;
  const std::size_t piece_;   // bytes of each piece but the last
  const std::size_t number_;  // of pieces
  // Made by the thread that drives, within a Use of the lease or after it was revoked
  std::array<std::unique_ptr<Piece>, kWindow> slots_;  // piece i at i % kWindow
  std::vector<std::unique_ptr<Piece>> undrained_;      // pieces that have ended, though UCC may still use their share
  std::unique_ptr<char[]> left_;                       // a copy of the memory, if the operation goes on without its caller
  std::size_t made_ = 0;                               // pieces
  std::size_t next_ = 0;                               // of the steps on the board, in their order
  std::size_t first_ = 0;                              // the first piece that has not ended
  std::uint64_t ticket_ = 0;
  std::atomic<bool> begun_{false};
  bool has_ended_ = false;
  Status status_;
  Status doubt_;
};

}  // namespace torch_ucc::hosts
