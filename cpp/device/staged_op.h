// An operation that cannot begin at once: its data must first arrive from a device in stand-ins on
// the host, or an earlier operation must end first. At its end, it copies back to the device what
// its pieces have not copied back before. An operation on device memory begins when its stream has
// reached the call, and then posts everything.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/thread_annotations.h"
#include "device/copies.h"
#include "progress/effect_order.h"
#include "progress/op_decorator.h"
#include "progress/ticket_queue.h"

namespace torch_ucc {

// The collectives of a group begin in the order of their calls. While one of them has not begun,
// each later collective becomes a StagedOp, too, and waits for its ticket. The messages of a group
// keep their own order in the same way. Messages and collectives do not wait for each other.
class StagedOp final : public OpDecorator {
 public:
  // The order in which the collectives of a group begin. The messages of a group have a Line of
  // their own.
  struct Line {
    std::shared_ptr<TicketQueue> tickets = std::make_shared<TicketQueue>();
    // How many operations have not begun
    std::shared_ptr<std::atomic<int>> waiting = std::make_shared<std::atomic<int>>(0);
  };

  // `copies` may be null. If `after` is empty, begin() of the copies was called already. `reads`
  // says whether the operation sends data of its caller.
  StagedOp(std::shared_ptr<Op> op, std::shared_ptr<Copies> copies, const Line& line, EffectOrder::Earlier after, bool reads);
  ~StagedOp() override;

  Status start(LoopToken& token) override;
  State poll(LoopToken& token) override;
  Status transport_status() const override { return status_; }
  Status finish() override;
  void announce() const override;
  bool is_announced() const override;
  bool starts_slowly() const override { return copies_ == nullptr && OpDecorator::starts_slowly(); }
  std::string waits_for() const override;
  bool detach_inputs() override;
  bool can_detach_inputs() const override { return copies_ == nullptr && OpDecorator::can_detach_inputs(); }
  bool has_detached_inputs() const override { return (!follows_others_ || has_followed_) && OpDecorator::has_detached_inputs(); }
  void cancel(LoopToken& token) override;
  bool is_drained(LoopToken& token) override { return !begun_ || OpDecorator::is_drained(token); }

 protected:
  void on_taken_back(After after) noexcept override;

 private:
  Direct* direct() const { return copies_ == nullptr ? nullptr : copies_->direct(); }
  bool has_arrived();
  void follow();
  bool earlier_have_ended();
  void count_begun();
  Status begin(LoopToken& token);
  State poll_begun(LoopToken& token);

  const std::shared_ptr<Copies> copies_;
  const std::shared_ptr<TicketQueue> tickets_;
  std::shared_ptr<std::atomic<int>> waiting_;  // null once the operation has begun
  EffectOrder::Earlier after_;                 // earlier operations that may not have ended
  const bool follows_others_;
  const bool reads_;
  std::string first_of_these_;  // describes the first of `after`, for the report of a timeout
  std::uint64_t ticket_ = 0;
  // A thread may detach inputs while another sees earlier operations end
  Mutex mutex_;
  std::atomic<bool> has_followed_{false};  // the earlier operations have ended
  bool detach_when_followed_ TUCC_GUARDED_BY(mutex_) = false;
  bool is_taken_back_ TUCC_GUARDED_BY(mutex_) = false;
  std::atomic<bool> arrived_{false};
  std::atomic<bool> begun_{false};
  Status status_;
};

}  // namespace torch_ucc
