// One UCC team: the processes of a group within a context.
#pragma once

#include <ucc/api/ucc.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "progress/bell.h"
#include "progress/failure_domain.h"
#include "progress/loop_token.h"
#include "progress/op.h"
#include "progress/ticket_queue.h"
#include "ucc/context.h"

namespace torch_ucc {

class UccTeam {
 public:
  // `id` is 1..kMaxId and differs from that of any other live team of the context. `members` are
  // positions in the context, by rank of the team; `rank` is the rank of this process. The
  // operations of the team fail together with `domain`. Creating a team involves only its members,
  // and tl_ucp sends nothing for it.
  UccTeam(std::uint16_t id, std::vector<std::uint64_t> members, int rank, Bells bells, std::shared_ptr<FailureDomain> domain);
  // Leaks the team unless destroy() was called: a destructor does not have the baton.
  ~UccTeam() = default;
  UccTeam(const UccTeam&) = delete;
  UccTeam& operator=(const UccTeam&) = delete;

  static constexpr int kMaxId = 32767;

  ucc_status_t create_post(LoopToken& token, UccContext& context);
  ucc_status_t create_test(LoopToken& token);
  // Destroys the team without any other process. Nothing may be in flight on the team.
  void destroy(LoopToken& token);

  ucc_team_h handle(LoopToken& token) const {
    token.check();
    return handle_;
  }
  void ring_members() const { Bell::ring(bells_.on_host); }
  bool all_members_ring() const { return bells_.complete; }
  FailureDomain& domain() const { return *domain_; }
  std::uint16_t id() const { return id_; }

  // UCC matches collectives by the order in which the members initialise them, and a large
  // collective is initialised piece by piece. So each collective initialises its pieces in its
  // turn.
  TicketQueue& tickets() { return tickets_; }
  // The order of calls that the ranks compare first (CheckedOp): the calls that passed start in the
  // order in which they were made.
  TicketQueue& check_tickets() { return check_tickets_; }

  // Whether an operation with pieces of `bytes` bytes may start beside the posted operations. On
  // one host, large operations would hold up the posted ones. Operations with later tickets wait as
  // well. If the members are not all on this host, no operation is held back.
  bool has_room_for(LoopToken& token, std::size_t bytes) const {
    token.check();
    return moving_ == 0 || bytes <= kSmall || moving_ + bytes <= kMostOnHost || !bells_.complete;
  }
  // Counts a piece of `bytes` bytes as posted. has_moved() counts it as ended.
  void begins_to_move(LoopToken& token, std::size_t bytes) {
    context_->count_posted(token);
    moving_ += bytes;
  }
  void has_moved(LoopToken& token, std::size_t bytes) {
    token.check();
    context_->count_ended();
    moving_ -= bytes;
  }

 private:
  static constexpr std::size_t kSmall = std::size_t{64} << 10;
  static constexpr std::size_t kMostOnHost = std::size_t{2} << 20;

  const std::uint16_t id_;
  std::vector<std::uint64_t> members_;  // UCC keeps a pointer into it
  const int rank_;
  const Bells bells_;
  const std::shared_ptr<FailureDomain> domain_;
  UccContext* context_ = nullptr;  // null until create_post(), like handle_
  ucc_team_h handle_ = nullptr;
  TicketQueue tickets_;
  TicketQueue check_tickets_;
  std::size_t moving_ = 0;  // bytes of the posted pieces; used with the baton
};

// The operation that creates the UCC object of `team`. It keeps the team alive; the context must
// outlive it.
class CreateTeam : public Op {
 public:
  CreateTeam(std::shared_ptr<UccTeam> team, UccContext& context, std::string name);
  Status start(LoopToken& token) override;
  State poll(LoopToken& token) override;
  Status transport_status() const override { return status_; }
  FailureDomain& domain() const override { return team_->domain(); }
  std::string describe() const override { return "creating group '" + name_ + "'"; }

 private:
  const std::shared_ptr<UccTeam> team_;
  UccContext& context_;
  const std::string name_;
  Status status_;
};

}  // namespace torch_ucc
