// Runs the ranks of one group in every order that the protocol of the board allows.
//
// A rank makes transitions: it begins a collective, writes and enters a step, or reads a step. The
// search takes one transition of one rank at a time. It assumes that everything that the ranks can
// observe follows from how many transitions each rank has made, so a state of the search is the
// vector of these counts. The search also checks this assumption: it reaches each state by every
// transition that leads there, and compares all memory. Two transitions of which one writes what
// the other one reads or writes, which would be a data race between threads, leave different memory
// in one order than in the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fakes/calls.h"
#include "fakes/faces.h"
#include "shm/collective.h"

namespace torch_ucc::shm {

// One rank, which runs a program.
class Rank {
 public:
  Rank(std::shared_ptr<Board> board, const Program& program) : board_(std::move(board)) {
    for (std::size_t i = 0; i < program.size(); ++i) {
      tensors_.emplace_back(program[i], i, board_->size(), board_->rank());
    }
  }
  virtual ~Rank() = default;
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Makes one transition. Returns false, and changes nothing that others can see, if the rank has
  // to wait or has ended.
  virtual bool advance(LoopToken& token) = 0;

  Board& board() const { return *board_; }
  const std::shared_ptr<Board>& shared_board() const { return board_; }
  // How many calls have ended well.
  std::size_t done() const { return done_; }
  bool all_done() const { return done_ == tensors_.size(); }
  // The error of the call that failed, if one has failed.
  const Status& error() const { return error_; }
  bool goes_on() const { return !all_done() && error_.ok(); }
  const std::deque<Tensors>& tensors() const { return tensors_; }
  Tensors& tensors(std::size_t call) { return tensors_[call]; }
  // Whether the calls that have ended well have stored the right data.
  virtual bool has_right_results() const {
    return std::all_of(tensors_.begin(), tensors_.begin() + static_cast<std::ptrdiff_t>(done_),
                       [](const Tensors& each) { return each.are_right(); });
  }

 protected:
  void end_call() { ++done_; }
  void fail(Status error) { error_ = std::move(error); }

 private:
  const std::shared_ptr<Board> board_;
  std::deque<Tensors> tensors_;
  std::size_t done_ = 0;
  Status error_;
};

// A rank that runs shm::Collective.
class RealRank final : public Rank {
 public:
  RealRank(LoopToken& token, const std::shared_ptr<Board>& board, const Program& program) : Rank(board, program) {
    board->tickets().take(token);  // so that no operation begins in start()
    for (std::size_t call = 0; call < program.size(); ++call) {
      ops_.push_back(std::make_unique<Probe>(board, tensors(call).movement()));
      if (Status status = ops_.back()->start(token); !status.ok()) {
        fail(std::move(status));
      }
    }
    board->tickets().pass(token);
  }

  bool advance(LoopToken& token) override {
    if (!goes_on()) {
      return false;
    }
    const bool advanced = op().advance(token);
    if (op().has_ended()) {
      const Status status = op().transport_status();
      status.ok() ? end_call() : fail(status);
    }
    return advanced;
  }

  // Whether the operation under way waits for something that `lost` has never given.
  bool misses(std::size_t lost) const {
    return goes_on() && op().need_of({static_cast<int>(lost), {}, Loss::kUnknown}) == Op::Need::missing;
  }

  // Takes the memory of the operation under way back. Its caller then writes kReused to all of it.
  static constexpr std::uint8_t kReused = 0x77;
  void take_back(Op::After after) {
    op().take_back(after);
    tensors(done()).reuse(kReused);
    taken_back_ = done();
  }
  // Gives the operation under way up, as the engine does.
  void give_up(LoopToken& token) {
    if (taken_back_ != done()) {
      take_back(Op::After::given_up);
    }
    op().cancel(token);
    fail(Status(StatusCode::peer_gone, "given up"));
  }
  // Whether an operation has left the memory alone that was taken back from it.
  bool left_memory_alone() const { return taken_back_ == kNone || tensors()[taken_back_].hold_only(kReused); }
  bool has_right_results() const override {
    for (std::size_t call = 0; call < done(); ++call) {
      if (call != taken_back_ && !tensors()[call].are_right()) {
        return false;
      }
    }
    return true;
  }

 private:
  class Probe final : public Collective {
   public:
    Probe(const std::shared_ptr<Board>& board, Movement movement)
        : Collective(board, std::move(movement)), own_rank_(static_cast<int>(board->rank())) {}
    using Collective::advance;
    std::string describe() const override { return "a collective"; }
    // Until then, an operation may need something of any rank.
    bool has_ended() const { return need_of({own_rank_, {}, Loss::kUnknown}) == Need::none; }

   private:
    const int own_rank_;
  };

  static constexpr std::size_t kNone = ~std::size_t{0};

  Probe& op() const { return *ops_[done()]; }

  std::vector<std::unique_ptr<Probe>> ops_;
  std::size_t taken_back_ = kNone;  // the call whose caller has its memory back
};

// A rank that is played by the test, and follows other rules than shm::Collective.
class PlayedRank final : public Rank {
 public:
  enum class Rule : std::uint8_t {
    right,               // as shm::Collective
    overwrites,          // writes to its slot at once
    overwrites_early,    // writes to its slot one step too early, as if there were one slot more
    waits_for_nobody,    // reads at once
    misses_the_last,     // reads without its last peer
    enters_first,        // enters a step before it has written what it gives
    waits_for_everyone,  // writes only when all peers have entered the step
  };

  PlayedRank(const std::shared_ptr<Board>& board, const Program& program, Rule rule) : Rank(board, program), rule_(rule) {}

  bool advance(LoopToken& /*token*/) override {
    if (!goes_on()) {
      return false;
    }
    switch (phase_) {
      case Phase::begins:
        movement_ = tensors(done()).movement();
        run_ = std::make_unique<Run>(Run{movement_, board(), &Pattern::of(movement_, board())});
        run_->first_step = board().next_step();
        run_->pattern->plan(*run_);
        step_ = 0;
        phase_ = rule_ == Rule::enters_first ? Phase::enters : Phase::writes;
        return true;
      case Phase::enters:
        if (!may_write()) {
          return false;
        }
        enter();
        phase_ = Phase::writes;
        return true;
      case Phase::writes:
        if (!may_write()) {
          return false;
        }
        run_->pattern->write(*run_, step_);
        enter();
        phase_ = Phase::reads;
        return true;
      case Phase::reads:
        break;
    }
    if (!may_read()) {
      return false;
    }
    run_->pattern->read(*run_, step_);
    phase_ = rule_ == Rule::enters_first ? Phase::enters : Phase::writes;
    if (++step_ == run_->steps) {
      board().add(run_->movement.call(), run_->steps);
      end_call();
      phase_ = Phase::begins;
    }
    return true;
  }

 private:
  enum class Phase : std::uint8_t { begins, enters, writes, reads };

  bool may_write() {
    const std::uint64_t step = run_->at(step_);
    switch (rule_) {
      case Rule::overwrites:
        return true;
      case Rule::overwrites_early:
        return step < kDepth || all_have_entered(step - kDepth);
      case Rule::waits_for_everyone:
        return all_have_entered(step);
      default:
        return board().reader_of_slot(step) == board().size();
    }
  }
  bool may_read() {
    if (rule_ == Rule::waits_for_nobody) {
      return true;
    }
    const std::size_t last = board().rank() + 1 == board().size() ? board().size() - 2 : board().size() - 1;
    for (std::size_t peer = 0; peer < board().size(); ++peer) {
      const bool asks = step_ == 0 && run_->pattern->asks(*run_, peer);
      if (peer == board().rank() || !(run_->pattern->reads_from(*run_, peer, step_) || asks) ||
          (rule_ == Rule::misses_the_last && peer == last)) {
        continue;
      }
      if (!board().has_entered(peer, run_->at(step_))) {
        return false;
      }
      if (asks) {
        run_->steps =
            std::max(movement_.kind == Movement::Kind::all_to_all ? run_->steps : 1, board().line_of(peer, run_->at(0)).steps);
      }
    }
    return true;
  }
  bool all_have_entered(std::uint64_t step) {
    for (std::size_t peer = 0; peer < board().size(); ++peer) {
      if (peer != board().rank() && !board().has_entered(peer, step)) {
        return false;
      }
    }
    return true;
  }
  void enter() {
    Line& line = board().line(run_->at(step_));
    line.call = movement_.call();
    line.before = board().history();
    line.bytes = movement_.bytes_given();
    line.steps = run_->steps;
    board().enter(run_->at(step_));
  }

  const Rule rule_;
  Movement movement_;
  std::unique_ptr<Run> run_;
  std::uint64_t step_ = 0;
  Phase phase_ = Phase::begins;
};

// The ranks of a group, and all that they can see of each other.
class World {
 public:
  using MakeRank =
      std::function<std::unique_ptr<Rank>(LoopToken& token, const std::shared_ptr<Board>& board, const Program& program)>;

  // `memory` holds the memory that the boards refer to.
  World(LoopToken& token, const std::vector<std::shared_ptr<Board>>& boards, std::shared_ptr<void> memory, const Program& program,
        const MakeRank& make)
      : memory_(std::move(memory)) {
    for (const auto& board : boards) {
      ranks_.push_back(make(token, board, program));
    }
  }

  // The shortest slots with which all kinds of collectives are possible.
  static std::size_t slot_bytes(std::size_t ranks) { return 64 * std::max<std::size_t>(2, ranks); }

  std::size_t size() const { return ranks_.size(); }
  Rank& rank(std::size_t rank) const { return *ranks_[rank]; }
  RealRank& real(std::size_t rank) const { return static_cast<RealRank&>(*ranks_[rank]); }
  bool all_done() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& each) { return each->all_done(); });
  }

  static char* lines_of(const Rank& rank) { return reinterpret_cast<char*>(&rank.board().line(0)); }
  static char* slots_of(const Rank& rank) { return rank.board().slot(0); }
  static std::size_t slots_bytes(const Rank& rank) { return kDepth * rank.board().slot_bytes(); }
  // How many steps a rank has entered.
  std::uint64_t entered(std::size_t rank) const {
    std::uint64_t most = 0;
    for (std::uint64_t step = 0; step < kDepth; ++step) {
      most = std::max(most, ranks_[rank]->board().line(step).entered.load());
    }
    return most;
  }

  // Of all memory that the ranks share, and of all destinations.
  std::size_t hash() const {
    std::size_t sum = 0;
    const auto add = [&sum](const void* data, std::size_t bytes) {
      const std::size_t more = std::hash<std::string_view>()({static_cast<const char*>(data), bytes});
      sum = (sum ^ more) * 0x9e3779b97f4a7c15U + (sum >> 7U);
    };
    for (const auto& each : ranks_) {
      add(lines_of(*each), sizeof(Face));
      add(slots_of(*each), slots_bytes(*each));
      const State state = each->board().state_of(each->board().rank());
      add(&state, sizeof(state));
      for (const Tensors& tensors : each->tensors()) {
        for (const Bytes& bytes : tensors.destinations()) {
          add(bytes.data(), bytes.size());
        }
      }
    }
    return sum;
  }

 private:
  const std::shared_ptr<void> memory_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

inline std::unique_ptr<Rank> make_real(LoopToken& token, const std::shared_ptr<Board>& board, const Program& program) {
  return std::make_unique<RealRank>(token, board, program);
}
inline World::MakeRank make_all_played(PlayedRank::Rule rule) {
  return [rule](LoopToken& /*token*/, const std::shared_ptr<Board>& board, const Program& program) {
    return std::make_unique<PlayedRank>(board, program, rule);
  };
}
// Makes one rank that follows `rule`; the other ranks are real.
inline World::MakeRank make_one_played(std::size_t played, PlayedRank::Rule rule) {
  return [played, rule](LoopToken& token, const std::shared_ptr<Board>& board, const Program& program) -> std::unique_ptr<Rank> {
    if (board->rank() == played) {
      return std::make_unique<PlayedRank>(board, program, rule);
    }
    return make_real(token, board, program);
  };
}

class Search {
 public:
  using Counts = std::vector<std::uint8_t>;  // by rank: how many transitions it has made
  using Path = std::vector<std::uint8_t>;    // which ranks made a transition, one after the other
  struct Known {
    Path path;  // one that leads to the state
    std::size_t hash = 0;
    std::vector<bool> blocked;  // by rank: whether it has to wait in this state, or has ended
  };
  // What was found, and how often.
  struct Findings {
    std::size_t states = 0;
    // The most steps that a rank was ahead of another one that had entered its first step
    std::uint64_t most_ahead = 0;
    std::size_t ends = 0;  // states in which all ranks have ended
    // Faults
    std::size_t deadlocks = 0;
    std::size_t wrong_results = 0;
    std::size_t errors = 0;
    std::size_t orders_that_matter = 0;
    std::string first{};  // the path to the first fault

    bool has_fault() const { return !first.empty(); }
  };

  Search(LoopToken& token, std::size_t ranks, Program program, World::MakeRank make = make_real)
      : token_(token), ranks_(ranks), program_(std::move(program)), make_(std::move(make)) {}

  Findings run() {
    std::deque<Counts> queue{Counts(ranks_, 0)};
    known_[queue.front()].hash = replay({})->hash();
    for (; !queue.empty(); queue.pop_front()) {
      const Counts counts = queue.front();
      Known& known = known_[counts];
      std::vector<bool> blocked(ranks_);
      std::unique_ptr<World> here = replay(known.path);
      for (std::size_t rank = 0; rank < ranks_; ++rank) {
        if (here == nullptr) {
          here = replay(known.path);
        }
        blocked[rank] = !here->rank(rank).advance(token_);
        if (!blocked[rank]) {
          arrive(*here, counts, known.path, rank, queue);
          here.reset();
        }
      }
      if (here == nullptr) {
        here = replay(known.path);
      }
      known.blocked = blocked;
      if (std::find(blocked.begin(), blocked.end(), false) == blocked.end()) {
        if (here->all_done()) {
          ++findings_.ends;
        } else {
          fault(findings_.deadlocks, known.path);
        }
      }
    }
    findings_.states = known_.size();
    return findings_;
  }

  // All states; after run().
  const std::map<Counts, Known>& states() const { return known_; }

  // Returns the ranks after the transitions of `path`. On the way, the ranks that have to wait try
  // to advance, which must be in vain, and without effect.
  std::unique_ptr<World> replay(const Path& path) {
    const auto faces = std::make_shared<Faces>(ranks_, World::slot_bytes(ranks_));
    std::vector<std::shared_ptr<Board>> boards;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      boards.push_back(faces->board(rank));
    }
    auto made = std::make_unique<World>(token_, boards, faces, program_, make_);
    Counts counts(ranks_, 0);
    for (const std::uint8_t rank : path) {
      const std::vector<bool>& blocked = known_[counts].blocked;
      for (std::size_t other = 0; other < blocked.size(); ++other) {
        if (blocked[other] && made->rank(other).advance(token_)) {
          fault(findings_.orders_that_matter, path);
        }
      }
      if (!made->rank(rank).advance(token_)) {
        fault(findings_.orders_that_matter, path);
      }
      ++counts[rank];
    }
    return made;
  }

 private:
  void arrive(const World& there, Counts counts, Path path, std::size_t rank, std::deque<Counts>& queue) {
    ++counts[rank];
    path.push_back(static_cast<std::uint8_t>(rank));
    const auto [known, is_new] = known_.try_emplace(counts);
    if (is_new) {
      known->second.hash = there.hash();
      known->second.path = path;
      queue.push_back(counts);
    } else if (known->second.hash != there.hash()) {
      fault(findings_.orders_that_matter, path);
    }
    for (std::size_t each = 0; each < ranks_; ++each) {
      if (!there.rank(each).has_right_results()) {
        fault(findings_.wrong_results, path);
      }
      if (!there.rank(each).error().ok()) {
        fault(findings_.errors, path);
      }
      for (std::size_t other = 0; other < ranks_; ++other) {
        const std::uint64_t behind = std::max<std::uint64_t>(1, there.entered(other));
        const std::uint64_t entered = std::max(behind, there.entered(each));
        findings_.most_ahead = std::max(findings_.most_ahead, entered - behind);
      }
    }
  }

  void fault(std::size_t& count, const Path& path) {
    ++count;
    if (findings_.first.empty()) {
      findings_.first = "ranks";
      for (const std::uint8_t rank : path) {
        findings_.first += " " + std::to_string(rank);
      }
    }
  }

  LoopToken& token_;
  const std::size_t ranks_;
  const Program program_;
  const World::MakeRank make_;
  std::map<Counts, Known> known_;
  Findings findings_;
};

}  // namespace torch_ucc::shm
