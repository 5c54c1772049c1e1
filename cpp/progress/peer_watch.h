// Tells at once when a process on this host ends, however it ends.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "base/deadline.h"

namespace torch_ucc {

// One thread, which sleeps until the kernel reports an end. Where the kernel has no descriptors for processes it looks every 20
// ms.
class PeerWatch {
 public:
  struct Process {
    std::uint64_t peer = 0;  // who it is to the caller
    int pid = 0;             // in our pid namespace
  };

  // Called in the watching thread with `peer` when its process has ended, or
  // had when the watch began. It must neither block nor throw. Returns after
  // what time to call it once more; zero: not again.
  using OnEnd = std::function<milliseconds(std::uint64_t peer)>;

  PeerWatch(const std::vector<Process>& processes, OnEnd on_end);
  // Afterwards nothing is called any more. Not to be destroyed in the callback.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

 private:
  struct Watched {
    Process process;
    int descriptor;  // of the process; -1 where it has ended already, or the kernel has none
    bool ended = false;
    Deadline again;  // once ended: when to report it once more
  };

  void watch();
  // When to look again at the latest.
  Deadline report_ended();

  const OnEnd on_end_;
  std::vector<Watched> watched_;
  int stop_ = -1;  // an eventfd
  std::thread thread_;
};

}  // namespace torch_ucc
