// Reports at once when the process of a peer ends, on this host or on another.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "liveness/life_lines.h"
#include "liveness/notice.h"

namespace torch_ucc {

// Owns a thread that sleeps until the kernel reports the end of a process, or until a life line has
// something to read. If the kernel gave no descriptor for a process, the thread checks that process
// every 20 ms. The thread sends each notice on over its own lines, so that the notice reaches every
// host.
class PeerWatch {
 public:
  struct Process {
    std::uint64_t peer = 0;
    int pid = 0;  // in our pid namespace
    // Returns how the process ended; called in the watching thread after the end
    std::function<Ending()> how;
  };

  // Called in the watching thread, once for each peer that ended. Not called for a peer that left
  // in agreement with all ranks (Ending::left). Must neither block nor throw.
  using OnEnd = std::function<void(const Notice& notice)>;

  // `lines` may be null if no peer on another host is watched. Throws std::system_error.
  PeerWatch(std::vector<Process> processes, std::unique_ptr<LifeLines> lines, OnEnd on_end);
  // Calls stop(Ending::exited), which has no effect if stop() was called before.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // unsettled(): how many lines are still being made. without_line(): the peers to which no line
  // could be made; complete once unsettled() is 0. Any thread, except while stop() runs.
  std::size_t unsettled() const { return lines_ == nullptr ? 0 : lines_->unsettled(); }
  std::vector<std::uint64_t> without_line() const { return lines_ == nullptr ? std::vector<std::uint64_t>() : lines_->failed(); }

  // Sends over the lines how this process ends: left or exited. Joins the thread: when stop()
  // returns, the callback is not called any more and all descriptors are closed. Must not be called
  // from the callback, nor by two threads at once.
  void stop(Ending farewell);

 private:
  struct Watched {
    Process process;
    // Of the process; -1 if it had ended already, or the kernel has no such descriptors
    int descriptor;
    bool ended = false;
  };
  void watch();
  void look_at_processes();
  void learn(const Notice& notice);
  Deadline next() const;

  const OnEnd on_end_;
  std::unique_ptr<LifeLines> lines_;
  std::vector<Watched> watched_;
  std::set<std::uint64_t> known_;  // peers that are known to have ended
  std::atomic<Ending> farewell_{Ending::exited};
  int stop_ = -1;  // an eventfd
  std::thread thread_;
};

}  // namespace torch_ucc
