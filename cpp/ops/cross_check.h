// The debugging check that all ranks of a group make the same call: a mismatch is an error on every
// rank instead of a hang or wrong data.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "messages/channel.h"
#include "messages/messages.h"
#include "ops/call.h"
#include "ops/prepared.h"
#include "progress/op_decorator.h"
#include "ucc/team.h"

namespace torch_ucc {

// The properties of a call that must be equal on all ranks, as they are sent.
struct Fingerprint {
  static constexpr std::int64_t kAny = -1;  // may differ between the ranks

  std::array<char, 48> op{};
  std::array<char, 16> reduce_op{};
  std::array<char, 24> dtype{};
  std::array<char, 8> memory{};  // "device" if UCC works in device memory, else empty
  std::int64_t elements = kAny;
  std::int64_t root = kAny;
  std::uint64_t seq = 0;

  static Fingerprint of(const Call& call, const Prepared& prepared);
  bool operator==(const Fingerprint&) const = default;
  std::string describe() const;  // "broadcast seq 3 float32[4] root 1"
};

// Before the operation starts, each rank sends its fingerprint to rank 0, and rank 0 sends the
// result back. If a fingerprint differs from that of rank 0, the call fails on all ranks
// (StatusCode::invalid) with an error that shows both. Nothing of the operation has been sent then.
class CheckedOp final : public OpDecorator {
 public:
  CheckedOp(const Call& call, const Fingerprint& mine, std::shared_ptr<Op> op, std::shared_ptr<UccTeam> team,
            std::shared_ptr<Channel> channel);

  Status start(LoopToken& token) override;
  State poll(LoopToken& token) override;
  Status transport_status() const override { return status_; }
  bool starts_slowly() const override { return false; }
  void announce() const override;
  std::string waits_for() const override { return checked_ ? OpDecorator::waits_for() : std::string(); }
  void cancel(LoopToken& token) override;
  bool is_drained(LoopToken& token) override {
    return check_->is_drained(token) && (!checked_ || OpDecorator::is_drained(token));
  }

 private:
  struct Exchange;
  class Check;

  const std::shared_ptr<UccTeam> team_;
  const std::shared_ptr<Exchange> exchange_;
  std::unique_ptr<Messages> check_;
  std::uint64_t ticket_ = 0;
  std::atomic<bool> checked_{false};
  Status status_;
};

}  // namespace torch_ucc
