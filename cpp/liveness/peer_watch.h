// Tells at once when a process that others count on ends, on this host or on another.
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

// One thread, which sleeps until the kernel reports the end of a process, or something comes over a
// life line. Where the kernel has no descriptors for processes it looks every 20 ms. What it learns
// it tells over its lines, so that it reaches every host.
class PeerWatch {
 public:
  struct Process {
    std::uint64_t peer = 0;
    int pid = 0;                  // in our pid namespace
    std::function<Ending()> how;  // it ended; asked when it has, in the watching thread
  };

  // Called in the watching thread, once for each peer that ended, but not for those that left with
  // everybody's agreement. It must neither block nor throw.
  using OnEnd = std::function<void(const Notice& notice)>;

  // `lines` may be null: all of them are on this host. Throws std::system_error.
  PeerWatch(std::vector<Process> processes, std::unique_ptr<LifeLines> lines, OnEnd on_end);
  // Like stop(Ending::exited) if that was not called.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // How many lines are still being made; and who cannot be reached, once there are none.
  std::size_t unsettled() const { return lines_ == nullptr ? 0 : lines_->unsettled(); }
  std::vector<std::uint64_t> without_line() const { return lines_ == nullptr ? std::vector<std::uint64_t>() : lines_->failed(); }

  // Says over the lines how this process goes, left or exited. Afterwards nothing is called any
  // more and no descriptor is open. Not to be used in the callback, nor by two threads.
  void stop(Ending farewell);

 private:
  struct Watched {
    Process process;
    int descriptor;  // of the process; -1 where it has ended already, or the kernel has none
    bool ended = false;
  };
  void watch();
  void look_at_processes();
  void learn(const Notice& notice);
  Deadline next() const;

  const OnEnd on_end_;
  std::unique_ptr<LifeLines> lines_;
  std::vector<Watched> watched_;
  std::set<std::uint64_t> known_;  // to have ended
  std::atomic<Ending> farewell_{Ending::exited};
  int stop_ = -1;  // an eventfd
  std::thread thread_;
};

}  // namespace torch_ucc
