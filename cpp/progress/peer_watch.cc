#include "progress/peer_watch.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

namespace torch_ucc {
namespace {

constexpr milliseconds kLookEvery{20};  // where there is no descriptor

int open_process(int pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

// A process that was killed and that its parent has not yet asked about still has its id.
bool is_gone(int pid) {
  if (::kill(pid, 0) != 0 && errno == ESRCH) {
    return true;
  }
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(stat, text)) {
    return true;
  }
  const std::size_t name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() && (text[name_end + 2] == 'Z' || text[name_end + 2] == 'X');
}

}  // namespace

PeerWatch::PeerWatch(const std::vector<Process>& processes, OnEnd on_end) : on_end_(std::move(on_end)) {
  if (processes.empty()) {
    return;
  }
  for (const Process& process : processes) {
    watched_.push_back({process, open_process(process.pid), false, {}});
  }
  stop_ = ::eventfd(0, EFD_CLOEXEC);
  if (stop_ < 0) {
    throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  thread_ = std::thread([this] { watch(); });
}

PeerWatch::~PeerWatch() {
  if (thread_.joinable()) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(stop_, &one, sizeof(one));
    thread_.join();
  }
  for (const Watched& each : watched_) {
    if (each.descriptor >= 0) {
      ::close(each.descriptor);
    }
  }
  if (stop_ >= 0) {
    ::close(stop_);
  }
}

Deadline PeerWatch::report_ended() {
  Deadline next;
  for (Watched& each : watched_) {
    if (!each.ended) {
      pollfd query{each.descriptor, POLLIN, 0};
      each.ended = each.descriptor < 0 ? is_gone(each.process.pid) : ::poll(&query, 1, 0) > 0;
      each.again = each.ended ? Deadline(Clock::now()) : each.descriptor < 0 ? Deadline::after(kLookEvery) : Deadline();
    }
    if (each.ended && each.again.passed()) {
      const milliseconds pause = on_end_(each.process.peer);
      each.again = pause.count() > 0 ? Deadline::after(pause) : Deadline();
    }
    next = std::min(next, each.again);
  }
  return next;
}

void PeerWatch::watch() {
  ::pthread_setname_np(::pthread_self(), "ucc-watch");
  while (true) {
    const Deadline next = report_ended();
    std::vector<pollfd> polled{{stop_, POLLIN, 0}};
    for (const Watched& each : watched_) {
      if (!each.ended && each.descriptor >= 0) {
        polled.push_back({each.descriptor, POLLIN, 0});
      }
    }
    constexpr auto kLongest = std::chrono::hours(1);
    const auto pause = std::chrono::ceil<milliseconds>(std::min<Clock::duration>(next.left(), kLongest));
    ::poll(polled.data(), polled.size(), static_cast<int>(pause.count()));
    if (polled.front().revents != 0) {
      return;
    }
  }
}

}  // namespace torch_ucc
