#include "ucc/collective.h"

#include <cstring>
#include <utility>

#include "ucc/error_log.h"
#include "ucc/status.h"

namespace torch_ucc {
namespace {

// The part of a buffer that is this piece's; a side that an operation does not use stays as it is.
void cut(ucc_coll_buffer_info_t& side, const Pieces& pieces, std::size_t piece) {
  if (side.buffer != nullptr) {
    side.buffer = static_cast<char*>(side.buffer) + pieces.offset_of(piece);
    side.count = pieces.length_of(piece);
  }
}

}  // namespace

Collective::Collective(std::shared_ptr<UccTeam> team, const ucc_coll_args_t& args, Pieces pieces)
    : team_(std::move(team)), args_(args), pieces_(std::move(pieces)), total_(pieces_.number()) {}

Status Collective::start(LoopToken& token) {
  if (team_->handle(token) == nullptr) {
    return Status(StatusCode::closed, "the group was shut down");
  }
  ticket_ = team_->turns().take(token);
  post_pieces(token);
  return status_;
}

void Collective::post_pieces(LoopToken& token) {
  if (all_posted() || !team_->turns().serves(token, ticket_)) {
    return;
  }
  if (!begun_) {
    if (!team_->has_room_for(token, pieces_.bytes_of_piece())) {
      return;
    }
    errors_before_ = ErrorLog::count();
  }
  while (!all_posted() && posted_ - ended_ < pieces_.window) {
    const std::optional<Status> arrived = pieces_.flow == nullptr ? Status() : pieces_.flow->arrived(posted_);
    if (!arrived) {
      return;
    }
    status_ = arrived->ok() ? post_next(token) : *arrived;
    if (!status_.ok()) {
      team_->turns().pass(token);
      return;
    }
  }
  if (all_posted()) {
    team_->turns().pass(token);
  }
}

Status Collective::post_next(LoopToken& token) {
  ucc_coll_args_t args = args_;
  if (pieces_.count != 0) {
    cut(args.src.info, pieces_, posted_);
    cut(args.dst.info, pieces_, posted_);
    if (!pieces_.sources.empty()) {
      pack(posted_);
      args.src.info.buffer = room_for(posted_);
      args.src.info.count *= pieces_.sources.size();
    }
    if (!pieces_.destinations.empty()) {
      args.dst.info.buffer = room_for(posted_);
      args.dst.info.count *= pieces_.destinations.size();
    }
  }
  const ErrorLog::Scope listening;
  ucc_coll_req_h request = nullptr;
  if (const ucc_status_t status = ucc_collective_init(&args, &request, team_->handle(token)); status != UCC_OK) {
    Status failure = from_ucc(status, "ucc_collective_init");
    // Refused before anything was sent, the team is as it was; later pieces are another matter.
    return posted_ == 0 ? failure : Status(StatusCode::transport, failure.message());
  }
  if (const ucc_status_t status = ucc_collective_post(request); status != UCC_OK) {
    return Status(StatusCode::transport, from_ucc(status, "ucc_collective_post").message());
  }
  requests_[posted_++ % Pieces::kMaxWindow] = request;
  begun_.store(true, std::memory_order_relaxed);
  team_->begins_to_move(token, pieces_.bytes_of_piece());
  return {};
}

// The piece that was there before has ended.
char* Collective::room_for(std::size_t piece) {
  const std::size_t bytes = pieces_.bytes_of_piece();
  if (shares_ == nullptr) {
    shares_ = std::make_unique_for_overwrite<char[]>(bytes * pieces_.window);
  }
  return shares_.get() + piece % pieces_.window * bytes;
}

void Collective::pack(std::size_t piece) {
  const std::size_t bytes = pieces_.length_of(piece) * pieces_.element_size;
  char* share = room_for(piece);
  for (const void* part : pieces_.sources) {
    std::memcpy(share, static_cast<const char*>(part) + pieces_.offset_of(piece), bytes);
    share += bytes;
  }
}

void Collective::unpack(std::size_t piece) {
  const std::size_t bytes = pieces_.length_of(piece) * pieces_.element_size;
  const char* share = room_for(piece);
  for (void* part : pieces_.destinations) {
    std::memcpy(static_cast<char*>(part) + pieces_.offset_of(piece), share, bytes);
    share += bytes;
  }
}

Op::State Collective::poll(LoopToken& token) {
  token.check();
  const std::size_t before = ended_ + posted_;
  while (ended_ < posted_) {
    ucc_coll_req_h& request = requests_[ended_ % Pieces::kMaxWindow];
    const ucc_status_t status = ucc_collective_test(request);
    if (status == UCC_INPROGRESS) {
      break;
    }
    if (status != UCC_OK) {
      // Whatever UCC calls it: this request and those of other pieces may still use the buffers.
      status_ = Status(StatusCode::transport, from_ucc(status, "ucc_collective_test").message());
      return State::ended;  // the request stays: UCC may still use what belongs to it
    }
    ucc_collective_finalize(std::exchange(request, nullptr));
    team_->has_moved(token, pieces_.bytes_of_piece());
    if (!pieces_.destinations.empty()) {
      unpack(ended_);
    }
    if (pieces_.flow != nullptr) {
      status_ = pieces_.flow->ended(ended_);
      if (!status_.ok()) {
        return State::ended;
      }
    }
    ++ended_;
  }
  if (ended_ == total_) {
    shares_.reset();  // whoever keeps the Work keeps no more than that
  }
  const std::size_t posted = posted_;
  post_pieces(token);
  if (posted_ != posted) {
    announce();  // who waits for it may have gone to sleep meanwhile
  }
  if (!status_.ok() || ended_ == total_) {
    doubtful_ = ErrorLog::count() != errors_before_;
    if (doubtful_ && status_.ok() && doubt().message().find("truncated") != std::string::npos) {
      status_ = doubt();  // more came than there was room for: nobody's end explains that
    }
    return State::ended;
  }
  return ended_ + posted_ == before ? State::in_flight : State::advanced;
}

std::string Collective::waits_for() const {
  return begun_.load(std::memory_order_relaxed) ? "" : "earlier operations of its group, and nothing of it was sent";
}

Status Collective::doubt() const {
  return doubtful_ ? Status(StatusCode::transport,
                            "UCC says that it ended well, but reported meanwhile: " + ErrorLog::first_since(errors_before_))
                   : Status();
}

// A gigabyte a second, which a slow network does not reach: those who wait then sleep between polls, in short pauses.
microseconds Collective::patience() const {
  constexpr std::size_t kBytesPerMicrosecond = 1000;
  return microseconds(pieces_.bytes_of_piece() / kBytesPerMicrosecond);
}

// UCC's post copies at once what has room in its queues (16 MB in pieces of 1 MB: 0.8 of 3.5 ms).
bool Collective::starts_slowly() const {
  constexpr std::size_t kQuick = std::size_t{256} << 10;
  return pieces_.bytes_of_piece() > kQuick;
}

}  // namespace torch_ucc
