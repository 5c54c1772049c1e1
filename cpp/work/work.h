// The promise made to PyTorch for one operation.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "compat/torch_compat.h"
#include "progress/engine.h"
#include "progress/op.h"
#include "trace/counters.h"
#include "work/delivery.h"

namespace torch_ucc {

// What a Work needs of the group it belongs to, alive as long as the Work is.
struct WorkHome {
  static constexpr std::size_t kOperations = 32;  // room for the table of operations

  Engine& engine;
  Delivery& delivery;
  std::uint32_t group = 0;  // its number in the flight recorder
  std::array<trace::CountersByRoute, kOperations> counters{};
};

// Dropping it does not end the operation. All members may be called from any thread; none needs the GIL.
class UccWork final : public c10d::Work {
 public:
  // What a call of c10d came to. `title` names it in profiles, `inputs` go there if they are not the outputs.
  struct Parts {
    std::shared_ptr<Op> op;    // what to wait for: null if nothing had to be sent, a batch if the call was coalesced
    std::shared_ptr<Op> part;  // the call's own operation within a batch, else null
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = nullptr;
    trace::Counters* counters = nullptr;  // those of the home for this kind of call
    std::uint64_t seq = 0;
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
  };
  UccWork(std::shared_ptr<WorkHome> home, int rank, Parts parts);

  bool isCompleted() override;  // never blocks
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  int sourceRank() const override;  // of a receive from any source, once done

  // Drives progress itself where it can. Throws what the operation failed with. A `timeout` (0: none) bounds this wait only:
  // it throws when that passes, the operation goes on and may be waited for again.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;

  // Completes with the tensors, or with the error, on a thread of `delivery`.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  std::uint64_t getSequencenumber() const override { return seq_; }

  // Milliseconds from when it was given to the transport to its end. Throws before that, and when the flight recorder no longer
  // has it.
  float getDuration() const override;

 private:
  bool ended() const { return op_ == nullptr || op_->completion().done(); }

  const std::shared_ptr<WorkHome> home_;
  const std::shared_ptr<Op> op_;
  const std::shared_ptr<Op> part_;
  trace::Counters* const counters_;  // alive as long as home_
  const std::uint64_t seq_;
  const std::vector<at::Tensor> outputs_;

  std::mutex future_mutex_;  // two threads may ask for the future at once; it is made only when asked for
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace torch_ucc
