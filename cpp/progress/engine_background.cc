// The background thread, which drives while no caller waits.
#include <pthread.h>
#include <sys/prctl.h>

#include <optional>

#include "base/core.h"
#include "progress/engine.h"
#include "progress/napper.h"

namespace torch_ucc {

void Engine::stop_background() {
  wake_up_.stop();
  bell_.ring();
  if (background_.joinable()) {
    background_.join();
  }
  if (failed()) {
    // Futures and callbacks rely on the background thread to end given-up operations
    drive(nullptr, 1);
  }
}

void Engine::background() {
  ::pthread_setname_np(::pthread_self(), "ucc-progress");
  ::prctl(PR_SET_TIMERSLACK, 5000UL);  // 5 us instead of 50: the pauses below are short
  Napper napper;
  std::optional<Parker> parker;  // while it drives
  bool held = true;
  while (!wake_up_.stopped()) {
    const Napper::Step step = napper.next({.left = left_.load(std::memory_order_relaxed),
                                           .wanted = !napper.drives() && wake_up_.take_call(),
                                           .work = background_has_work(),
                                           .intake = !intake_.empty(),
                                           .held = held});
    if (step.act != Napper::Act::drive) {
      parker.reset();
      if (step.act == Napper::Act::nap) {
        wake_up_.nap(step.duration, step.can_be_roused);
      } else {
        wake_up_.sleep();
      }
      continue;
    }
    if (!parker) {
      const int core = caller_core_.exchange(-1, std::memory_order_relaxed);
      if (core >= 0 && core != current_core() && !intake_.empty()) {
        move_to_core(core);
      }
      parker.emplace(policy_, Clock::now());
    }
    parker->set_patience(patience_.load(std::memory_order_relaxed));
    const Drove drove = drive_for(*parker, nullptr);
    held = drove.held;
    if (held) {
      rest(*parker, drove.now, nullptr, Deadline());
    }
  }
}

void Engine::drive_in_background(const Op& op) {
  if (!op.posted()) {
    return;
  }
  if (op.starts_slowly()) {
    wake_up_.rouse();
  } else {
    wake_up_.call();
  }
}

}  // namespace torch_ucc
