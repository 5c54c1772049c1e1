#include "liveness/peer_watch.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "base/process_state.h"

namespace torch_ucc {
namespace {

constexpr milliseconds kLookEvery{20};  // at a process without a descriptor

int open_process(int pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

// A process that ended keeps its id, as a zombie, until its parent has waited for it.
bool is_gone(int pid) {
  const char state = process_state(pid);
  return state == 'Z' || state == 'X';
}

bool is_readable(int descriptor) {
  pollfd query{descriptor, POLLIN, 0};
  return ::poll(&query, 1, 0) > 0;
}

}  // namespace

PeerWatch::PeerWatch(std::vector<Process> processes, std::unique_ptr<LifeLines> lines, OnEnd on_end)
    : on_end_(std::move(on_end)), lines_(std::move(lines)) {
  if (processes.empty() && lines_ == nullptr) {
    return;
  }
  stop_ = ::eventfd(0, EFD_CLOEXEC);
  if (stop_ < 0) {
    throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  for (Process& process : processes) {
    const int descriptor = open_process(process.pid);
    watched_.push_back({std::move(process), descriptor, false});
  }
  thread_ = std::thread([this] { watch(); });
}

PeerWatch::~PeerWatch() { stop(Ending::exited); }

void PeerWatch::stop(Ending farewell) {
  if (!thread_.joinable()) {
    return;
  }
  farewell_.store(farewell);
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_, &one, sizeof(one));
  thread_.join();
  for (const Watched& each : watched_) {
    if (each.descriptor >= 0) {
      ::close(each.descriptor);
    }
  }
  watched_.clear();
  lines_.reset();
  ::close(stop_);
}

void PeerWatch::look_at_processes() {
  for (Watched& each : watched_) {
    if (!each.ended) {
      each.ended = each.descriptor < 0 ? is_gone(each.process.pid) : is_readable(each.descriptor);
      if (each.ended) {
        learn({each.process.peer, each.process.how()});
      }
    }
  }
}

void PeerWatch::learn(const Notice& notice) {
  if (notice.how == Ending::left || !known_.insert(notice.peer).second) {
    return;
  }
  if (lines_ != nullptr) {
    lines_->tell(notice);
  }
  on_end_(notice);
}

Deadline PeerWatch::next() const {
  const Deadline next = lines_ == nullptr ? Deadline() : lines_->next();
  const bool looks =
      std::any_of(watched_.begin(), watched_.end(), [](const Watched& each) { return !each.ended && each.descriptor < 0; });
  return looks ? std::min(next, Deadline::after(kLookEvery)) : next;
}

void PeerWatch::watch() {
  ::pthread_setname_np(::pthread_self(), "ucc-watch");
  while (true) {
    look_at_processes();
    if (lines_ != nullptr) {
      for (const Notice& notice : lines_->serve()) {
        learn(notice);
      }
    }
    std::vector<pollfd> polled{{stop_, POLLIN, 0}};
    for (const Watched& each : watched_) {
      if (!each.ended && each.descriptor >= 0) {
        polled.push_back({each.descriptor, POLLIN, 0});
      }
    }
    if (lines_ != nullptr) {
      lines_->add_to(polled);
    }
    constexpr auto kLongest = std::chrono::hours(1);
    const auto pause = std::chrono::ceil<milliseconds>(std::min<Clock::duration>(next().left(), kLongest));
    ::poll(polled.data(), polled.size(), static_cast<int>(pause.count()));
    if (polled.front().revents != 0) {
      break;
    }
  }
  if (lines_ != nullptr) {
    lines_->farewell(farewell_.load());
  }
}

}  // namespace torch_ucc
