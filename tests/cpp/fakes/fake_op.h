// An operation that does as it is told, well or badly.
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "progress/op.h"

namespace torch_ucc {

class FakeOp : public Op {
 public:
  static constexpr int kNever = std::numeric_limits<int>::max();

  struct Plan {
    std::string name = "fake";
    int polls = 1;                    // calls of poll() until it ends; kNever: only end() ends it
    Status start{};                   // what start() returns
    Status transport{};               // how the transport says it ended
    Status doubt{};                   // what went wrong meanwhile
    int advances = 0;                 // every so many polls it says that it advanced; 0: never
    FailureDomain* domain = nullptr;  // null: one of its own
    Deadline deadline{};
    bool is_announced = false;  // whether peers would ring
    microseconds patience{0};
    bool starts_slowly = false;
    std::string waits_for{};    // nothing
    Need need = Need::relayed;  // of any lost member
    // Whether the transport lets go at once of what was given up
    bool drained = false;
    bool detaches = false;              // whether it copies what it still has to send
    bool detaches_later = false;        // only in detach_now()
    std::function<Status()> finish{};   // in place of finish(), may throw
    std::function<void()> on_start{};   // runs in start(), with the baton
    std::atomic<int>* freed = nullptr;  // counts destructions; must outlive the operation
  };

  explicit FakeOp(Plan plan) : plan_(std::move(plan)) { set_deadline(plan_.deadline); }
  ~FakeOp() override {
    if (plan_.freed != nullptr) {
      plan_.freed->fetch_add(1);
    }
  }

  Status start(LoopToken& token) override {
    token.check();
    starts_.fetch_add(1);
    if (plan_.on_start) {
      plan_.on_start();
    }
    return plan_.start;
  }

  State poll(LoopToken& token) override {
    token.check();
    const bool ended = ++polled_ >= plan_.polls || end_.load();
    polls_.store(polled_);
    if (ended) {
      return State::ended;
    }
    return plan_.advances != 0 && polled_ % plan_.advances == 0 ? State::advanced : State::in_flight;
  }

  Status transport_status() const override { return plan_.transport; }
  Status doubt() const override { return plan_.doubt; }

  Status finish() override {
    finishes_.fetch_add(1);
    return plan_.finish ? plan_.finish() : Status();
  }

  void announce() const override { announcements_.fetch_add(1); }
  bool is_announced() const override { return plan_.is_announced; }
  microseconds patience() const override { return plan_.patience; }
  bool starts_slowly() const override { return plan_.starts_slowly; }
  Need need_of(const Loss& /*loss*/) const override { return plan_.need; }
  void cancel(LoopToken& token) override {
    token.check();
    cancels_.fetch_add(1);
  }
  bool is_drained(LoopToken& token) override {
    token.check();
    return plan_.drained;
  }
  void let_go() override { let_go_.fetch_add(1); }
  bool detach_inputs() override {
    detached_.fetch_add(plan_.detaches ? 1 : 0);
    return plan_.detaches;
  }
  bool has_detached_inputs() const override { return !plan_.detaches_later || has_detached_.load(); }
  FailureDomain& domain() const override { return plan_.domain == nullptr ? own_domain_ : *plan_.domain; }
  std::string waits_for() const override { return plan_.waits_for; }
  std::string describe() const override { return plan_.name; }

  // The rest from any thread.
  void end() { end_.store(true); }
  void detach_now() { has_detached_.store(true); }
  int starts() const { return starts_.load(); }
  int polls() const { return polls_.load(); }
  int announcements() const { return announcements_.load(); }
  int finishes() const { return finishes_.load(); }
  int cancels() const { return cancels_.load(); }
  int let_go_calls() const { return let_go_.load(); }
  int detached() const { return detached_.load(); }
  int taken_back() const { return taken_back_.load(); }
  bool done() const { return completion().done(); }
  StatusCode code() const { return completion().status().code(); }
  const std::string& message() const { return completion().status().message(); }

 protected:
  void on_taken_back(After /*after*/) noexcept override { taken_back_.fetch_add(1); }

 private:
  const Plan plan_;
  mutable FailureDomain own_domain_{"own"};
  std::atomic<bool> has_detached_{false};
  int polled_ = 0;  // plain, as in a real operation: only the holder of the baton may touch it
  std::atomic<int> starts_{0};
  mutable std::atomic<int> announcements_{0};
  std::atomic<int> polls_{0};
  std::atomic<int> finishes_{0};
  std::atomic<int> cancels_{0};
  std::atomic<int> let_go_{0};
  std::atomic<int> taken_back_{0};
  std::atomic<int> detached_{0};
  std::atomic<bool> end_{false};
};

inline std::shared_ptr<FakeOp> make_op(FakeOp::Plan plan) { return std::make_shared<FakeOp>(std::move(plan)); }

}  // namespace torch_ucc
