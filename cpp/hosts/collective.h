// A collective of a group that spans hosts: through shared memory on each host, by UCC between them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "hosts/levels.h"
#include "hosts/piece.h"
#include "progress/op.h"
#include "shm/movement.h"
#include "ucc/team.h"

namespace torch_ucc::hosts {

// The data is cut into pieces, and the steps of each piece take turns on the host and in the row of
// this rank: see piece.h. So the ranks of a host together send no more than one rank would that is alone
// on its host, and the memory works on one piece while the network works on another.
//
// The ranks of a host are reduced in the order of their ranks. Then the hosts are reduced in the order of
// their lowest ranks, or in the order that UCC takes: see is_reduced_by_ucc().
class Collective : public Op {
 public:
  // `team` is that of the whole group. Its tickets keep the collectives of the group in the order of
  // their calls; nothing else uses `levels`. `movement` is the collective as the whole group sees it,
  // and its memory is used within the lease.
  Collective(std::shared_ptr<UccTeam> team, const Levels& levels, shm::Movement movement, const UccReduction& ucc);

  Status start(LoopToken& token) override;
  State poll(LoopToken& token) final;
  Status transport_status() const final { return status_; }
  std::string waits_for() const final;
  microseconds patience() const final { return patience_for(bytes_); }
  bool starts_slowly() const final;
  void cancel(LoopToken& token) final;
  bool is_drained(LoopToken& token) final;
  FailureDomain& domain() const final { return team_->domain(); }

 protected:
  void on_taken_back(After after) noexcept override;

 private:
  // How many pieces are under way at once.
  static constexpr std::size_t kWindow = 3;

  Piece& slot(std::size_t piece) { return *slots_[piece % kWindow]; }
  bool begin_next(LoopToken& token);
  void begin(LoopToken& token, Piece& piece);
  bool make_piece(LoopToken& token);
  void fill_slot(LoopToken& token);
  bool poll_piece(LoopToken& token, Piece& piece);
  bool may_go_on(LoopToken& token, Piece& piece, const Op& step);
  void add_up(const Piece::Sum& sum);
  void drop_pieces(LoopToken& token);
  void keep_undrained(LoopToken& token);
  void fail(const Status& status);

  const std::shared_ptr<UccTeam> team_;
  const Levels levels_;
  shm::Movement movement_;
  const Cut cut_;
  const std::uint64_t bytes_;  // what the operation moves, roughly
  // Made by the thread that drives, within a Use of the lease or after it was revoked
  std::array<std::unique_ptr<Piece>, kWindow> slots_;  // piece i at i % kWindow
  std::vector<std::unique_ptr<Piece>> undrained_;      // pieces that have ended, though UCC may still use their memory
  std::unique_ptr<char[]> left_;                       // a copy of the sources, if the operation goes on without its caller
  std::size_t next_ = 0;                               // of the stages on the board, in their order
  std::size_t made_ = 0;                               // pieces
  std::size_t first_ = 0;                              // the first piece that has not ended
  std::uint64_t ticket_ = 0;
  std::atomic<bool> begun_{false};
  bool has_ended_ = false;
  Status status_;
  bool was_in_doubt_ = false;  // a step was, and is believed
};

}  // namespace torch_ucc::hosts
