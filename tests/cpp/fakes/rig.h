// An engine over a fake transport, and what the tests of the engine look at.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "fakes/fake_op.h"
#include "fakes/fake_transport.h"
#include "fakes/limits.h"
#include "progress/engine.h"

namespace torch_ucc {

struct Rig {
  explicit Rig(LossPolicy losses = {}) : engine(transport, {}, Bell(), losses) {}

  FakeTransport transport;
  Engine engine;

  std::shared_ptr<FakeOp> post(FakeOp::Plan plan, Follow follow = Follow::waits) {
    auto op = make_op(std::move(plan));
    engine.post(op, follow);
    return op;
  }
  bool wait(FakeOp& op) { return engine.wait(op, hard_limit()); }
};

// Sleeps until `op` is done, without making progress.
inline bool ends_by_itself(FakeOp& op) {
  const auto ended = std::make_shared<std::promise<void>>();
  op.completion().on_done([ended] { ended->set_value(); });
  return ended->get_future().wait_for(kHardLimit) == std::future_status::ready;
}

// Whether the baton can be had while the caller goes on: not if the caller holds it. Another thread
// asks, for as long as it takes others to give it back.
inline bool baton_is_free(Engine& engine) {
  bool had = false;
  std::thread([&] { had = engine.with_baton(Deadline::after(std::chrono::seconds(20)), [](LoopToken&) {}); }).join();
  return had;
}

// Holds the baton of an engine in a thread of its own, for its lifetime or until release().
class BatonHolder {
 public:
  explicit BatonHolder(Engine& engine)
      : thread_([this, &engine] {
          engine.with_baton(hard_limit(), [this](LoopToken&) {
            held_.store(true);
            held_.notify_all();
            released_.wait(false);
          });
        }) {
    held_.wait(false);
  }
  ~BatonHolder() { release(); }
  BatonHolder(const BatonHolder&) = delete;
  BatonHolder& operator=(const BatonHolder&) = delete;

  void release() {
    released_.store(true);
    released_.notify_all();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

 private:
  std::atomic<bool> held_{false};
  std::atomic<bool> released_{false};
  std::thread thread_;
};

}  // namespace torch_ucc
