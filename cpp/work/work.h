// The promise made to PyTorch for one operation.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/forked.h"
#include "compat/torch_compat.h"
#include "progress/engine.h"
#include "progress/op.h"
#include "trace/counters.h"
#include "work/delivery.h"
#include "work/fence.h"

namespace torch_ucc {

// What a Work needs of the group it belongs to, alive as long as the Work is.
struct WorkHome {
  static constexpr std::size_t kOperations = 32;  // room for the table of operations

  Engine& engine;
  Delivery& delivery;
  std::uint32_t group = 0;     // its number in the flight recorder
  bool blocking_wait = false;  // as if every wait() had a timeout
  std::array<trace::CountersByRoute, kOperations> counters{};
};

// Dropping it does not end the operation. All members may be called from any thread; none needs the
// GIL.
class UccWork final : public c10d::Work {
 public:
  // What a call of c10d came to. `title` names it in profiles, null where nobody profiles: the base
  // class would prepare for it all the same. `inputs` go there if they are not the outputs.
  struct Parts {
    std::shared_ptr<Op> op;    // what to wait for: null if nothing had to be sent, a batch if the call was coalesced
    std::shared_ptr<Op> part;  // the call's own operation within a batch, else null
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = nullptr;
    trace::Counters* counters = nullptr;  // those of the home for this kind of call
    std::uint64_t seq = 0;
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    std::vector<std::shared_ptr<const Fence>> fences;  // behind which the outputs are there, on devices

    bool ended() const { return op == nullptr || op->completion().done(); }
    // In a forked child an operation of its parent never ends.
    bool is_parents() const { return in_forked_child() && !ended(); }
    bool ended_well() const { return ended() && (op == nullptr || op->completion().status().ok()); }
    void synchronize() const;      // once it has ended well
    void wait_for_fences() const;  // the current stream does, however it ended
    // Makes progress until it has ended or the deadline has passed: of wait() what goes before a
    // look at how it ended.
    void drive(const WorkHome& home, Deadline deadline) const;
    // The same of an operation that is to be posted, without a deadline. When an exception ends it,
    // a signal's, the operation goes on for the sake of its peers, without the memory of its
    // caller.
    void post_and_drive(const WorkHome& home) const;
    // As UccWork::wait(), without the Work: for who waits in the call itself.
    void wait(const WorkHome& home, std::chrono::milliseconds timeout = kNoTimeout) const;
  };
  UccWork(std::shared_ptr<WorkHome> home, int rank, Parts&& parts);

  bool isCompleted() override;  // never blocks
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;      // the current stream waits for the outputs, if it has ended well
  int sourceRank() const override;  // of a receive from any source, once done

  // Drives progress itself where it can, until the part of the host is done; the rest is for the
  // current stream to wait for. With a `timeout` (0: none) the outputs are there when it returns.
  // It bounds this wait only: it throws when that passes, the operation goes on and may be waited
  // for again. Throws what the operation failed with.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;

  // Completes with the tensors, or with the error, on a thread of `delivery`; streams wait for
  // tensors on devices, as with any future.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  std::uint64_t getSequencenumber() const override { return parts_.seq; }

  // Milliseconds from when it was given to the transport to its end. Throws before that, and when
  // the flight recorder no longer has it.
  float getDuration() const override;

 private:
  const std::shared_ptr<WorkHome> home_;
  const Parts parts_;  // without the inputs

  std::mutex future_mutex_;  // two threads may ask for the future at once; it is made only when asked for
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace torch_ucc
