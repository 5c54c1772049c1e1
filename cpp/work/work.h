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

// What a Work needs of its group. It lives at least as long as the Work.
struct WorkHome {
  static constexpr std::size_t kOperations = 32;  // room for the table of operations

  Engine& engine;
  Delivery& delivery;
  std::uint32_t group = 0;  // its number in the flight recorder
  // wait() always blocks until the outputs are there, as with a timeout
  bool blocking_wait = false;
  std::array<trace::CountersByRoute, kOperations> counters{};
};

// Destroying a Work does not end its operation. All members may be called from any thread; none
// needs the GIL.
class UccWork final : public c10d::Work {
 public:
  // The result of a c10d call. `title` is its name in profiles; null if no profiler runs, since the
  // base class would prepare for one all the same. `inputs` are shown in profiles if they are not
  // the outputs.
  struct Parts {
    // What to wait for: null if nothing had to be sent, a batch if the call was coalesced
    std::shared_ptr<Op> op;
    std::shared_ptr<Op> part;  // the call's own operation within a batch, else null
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = nullptr;
    trace::Counters* counters = nullptr;  // the counters in the WorkHome for this kind of call
    std::uint64_t seq = 0;
    bool is_synchronous = false;  // whether the caller gets no Work from c10d
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    // On devices: the outputs are there once these are passed
    std::vector<std::shared_ptr<const Fence>> fences;

    bool ended() const { return op == nullptr || op->completion().done(); }
    // Whether the operation belongs to the parent of this forked child. It never ends here.
    bool is_parents() const { return in_forked_child() && !ended(); }
    bool ended_well() const { return ended() && (op == nullptr || op->completion().status().ok()); }
    // Makes the current stream wait for the outputs. Only called if ended_well().
    void synchronize() const;
    // Makes the current stream wait for the raised fences, however the operation ended.
    void wait_for_fences() const;
    // Drives the engine until the operation has ended or the deadline has passed. The caller must
    // check which of the two happened, and how the operation ended. Throws what check_interrupt()
    // throws: see interrupted().
    void drive(const WorkHome& home, Deadline deadline) const;
    // Posts the operation and drives the engine until the operation has ended, without a deadline.
    void post_and_drive(const WorkHome& home) const;
    // A signal ends the caller's wait. A synchronous operation then goes on for its peers, without
    // the memory of its caller.
    void interrupted() const;
    // What UccWork::wait() does. For a call that waits itself and makes no Work.
    void wait(const WorkHome& home, std::chrono::milliseconds timeout = kNoTimeout) const;
  };
  UccWork(std::shared_ptr<WorkHome> home, int rank, Parts&& parts);

  bool isCompleted() override;  // never blocks
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override;
  // Makes the current stream wait for the outputs, if the operation ended well
  void synchronize() override;
  int sourceRank() const override;  // the rank that sent; -1 until the receive has ended

  // Drives the engine until the operation has ended on the host, then makes the current stream wait
  // for the outputs. With a `timeout` (0: none), also waits until the outputs are on the device.
  // The timeout limits only this call. If it passes, wait() throws, the operation goes on, and
  // wait() may be called again. If the operation failed, throws its error.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;

  // The future completes with the outputs, or with the error of the operation: on a thread of
  // `delivery`, or in this call if the operation has ended already. Streams wait for outputs on
  // devices, as with any future.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  std::uint64_t getSequencenumber() const override { return parts_.seq; }

  // Milliseconds from the post of the operation to its end; 0 if nothing had to be sent. Throws
  // before the end, and if the flight recorder no longer has the call record.
  float getDuration() const override;

 private:
  const std::shared_ptr<WorkHome> home_;
  const Parts parts_;  // without the inputs

  // Two threads may ask for the future at once; it is made only when asked for
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace torch_ucc
