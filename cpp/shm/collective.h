// A collective of ranks on one host, through shared memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "progress/op.h"
#include "shm/board.h"
#include "shm/movement.h"
#include "shm/pattern.h"

namespace torch_ucc::shm {

// No process writes memory of another one, so an operation that is given up leaves nothing behind:
// its caller has the memory back at once. The memory that `movement` names is used within the
// lease.
class Collective : public Op {
 public:
  Collective(std::shared_ptr<Board> board, Movement movement);

  Status start(LoopToken& token) override;
  State poll(LoopToken& token) final;
  Status transport_status() const final { return status_; }
  std::string waits_for() const final;
  void announce() const final;
  bool is_announced() const final { return board_->all_members_ring(); }
  microseconds patience() const final { return patience_for(bytes_); }
  bool starts_slowly() const final;
  Need need_of(const Loss& loss) const override;
  void cancel(LoopToken& token) final;
  bool is_drained(LoopToken& /*token*/) final { return true; }
  FailureDomain& domain() const final { return board_->domain(); }

 protected:
  void on_taken_back(After after) noexcept override;

  // Begins, writes and enters a step, or reads what the peers gave in it; poll() repeats this.
  // Returns false if the next of these has to wait for a peer, or if the operation has ended.
  bool advance(LoopToken& token);

 private:
  enum class Phase : std::uint8_t { queued, writes, reads, ended };

  bool begin(LoopToken& token);
  bool write();
  bool read();
  bool awaits(std::size_t peer) const;
  bool look_at(std::size_t peer);
  void refuse(std::size_t peer, const std::string& what);
  void blame(std::size_t peer);
  bool use_memory(bool reads);
  void end(LoopToken& token);
  void give_up();

  const std::shared_ptr<Board> board_;
  Movement movement_;
  Run run_;
  // What this rank says in each step: Movement::call() and Movement::bytes_given()
  const std::uint64_t call_;
  const std::uint64_t given_;
  std::uint64_t before_ = 0;   // Board::history() when the collective began
  const std::uint64_t bytes_;  // what the operation moves, roughly
  std::uint64_t ticket_ = 0;
  std::uint64_t step_ = 0;
  std::size_t peer_ = 0;  // the peers before this one have entered the step
  Phase phase_ = Phase::queued;
  mutable std::optional<std::uint64_t> unannounced_;  // the first step entered since the last announcement
  std::atomic<bool> begun_{false};
  std::unique_ptr<char[]> left_;  // a copy of the sources, if the operation goes on without its caller
  Status status_;
};

}  // namespace torch_ucc::shm
