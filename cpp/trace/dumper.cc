#include "trace/dumper.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <system_error>

#include "base/forked.h"
#include "base/status.h"
#include "trace/dump.h"

namespace torch_ucc::trace {
namespace {

std::atomic<Dumper*> dumper{nullptr};
struct sigaction earlier {};

void on_signal(int number, siginfo_t* info, void* context) {
  const int error = errno;
  request_dump("signal");
  errno = error;
  if ((earlier.sa_flags & SA_SIGINFO) != 0) {
    earlier.sa_sigaction(number, info, context);
  } else if (earlier.sa_handler != SIG_DFL && earlier.sa_handler != SIG_IGN) {
    earlier.sa_handler(number);
  }
}

// Writes a partial file and renames it, so that a reader never sees half a dump. Other users may be
// able to write to the directory, such as /tmp: a file or link with the name of the partial file is
// removed, and never opened. Returns false on failure.
bool write_whole(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path partial = path.string() + ".partial";
  std::error_code error;
  std::filesystem::remove(partial, error);
  const int fd = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) {
    return false;
  }
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(fd, text.data() + written, text.size() - written);
    if (count < 0 && errno != EINTR) {
      break;
    }
    written += count < 0 ? 0 : static_cast<std::size_t>(count);
  }
  if (::close(fd) != 0 || written != text.size()) {
    return false;
  }
  std::filesystem::rename(partial, path, error);
  return !error;
}

}  // namespace

Dumper::Dumper(const FlightRecorder& recorder, std::filesystem::path directory)
    : recorder_(recorder), directory_(std::move(directory)), wake_(::eventfd(0, EFD_CLOEXEC)) {
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (error || wake_ < 0) {
    throw StatusError(Status(StatusCode::invalid, "dumps cannot be written to " + directory_.string() + ": " +
                                                      (error ? error.message() : "an eventfd cannot be created")));
  }
  thread_ = std::thread([this] { run(); });
}

Dumper::~Dumper() {
  stopping_.store(true);
  request("closing");
  thread_.join();
  ::close(wake_);
}

void Dumper::request(const char* reason) {
  reason_.store(reason);
  requested_.fetch_add(1);
  const std::uint64_t one = 1;
  // Fails only if the counter is full
  [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
}

bool Dumper::flush(Deadline deadline) {
  const std::uint64_t asked = requested_.load();
  std::unique_lock<std::mutex> lock(mutex_);
  return written_wake_.wait_for(lock, std::min<Clock::duration>(deadline.left(), std::chrono::hours(1)),
                                [&] { return written_ >= asked; });
}

void Dumper::run() {
  ::pthread_setname_np(::pthread_self(), "ucc-dump");
  while (true) {
    std::uint64_t count = 0;
    if (::read(wake_, &count, sizeof count) < 0 && errno != EINTR) {
      return;
    }
    if (stopping_.load()) {
      return;
    }
    const std::uint64_t asked = requested_.load();
    write(reason_.load());
    const std::lock_guard<std::mutex> lock(mutex_);
    written_ = asked;
    written_wake_.notify_all();
  }
}

void Dumper::write(const char* reason) {
  const std::string name = "rank" + std::to_string(recorder_.global_rank()) + ".json";
  if (!write_whole(directory_ / name, to_json(recorder_, reason)) && !told_) {
    told_ = true;
    std::fprintf(stderr, "torch_ucc: the dump %s could not be written\n", (directory_ / name).c_str());
  }
}

void start_dumper(const std::filesystem::path& directory) {
  mark_forked_children();
  static auto* const instance = new Dumper(recorder(), directory);
  dumper.store(instance);
}

void dump_at_signal() {
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  static const int installed = ::sigaction(SIGUSR2, &action, &earlier);
  (void)installed;
}

// A forked child has no dumper thread, and its eventfd would wake the thread of its parent.
void request_dump(const char* reason) {
  if (Dumper* const instance = in_forked_child() ? nullptr : dumper.load()) {
    instance->request(reason);
  }
}

void flush_dump(Deadline deadline) {
  if (Dumper* const instance = in_forked_child() ? nullptr : dumper.load()) {
    instance->flush(deadline);
  }
}

}  // namespace torch_ucc::trace
