// A forked process that a test talks to.
#pragma once

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>
#include <string>
#include <utility>

#include "fakes/limits.h"

namespace torch_ucc {

// One end of a connection that keeps the borders of messages. A message has at most 4 KB.
class ChildChannel {
 public:
  explicit ChildChannel(int file) : file_(file) {
    const timeval limit{kHardLimit.count(), 0};
    ::setsockopt(file_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  }
  ~ChildChannel() { ::close(file_); }
  ChildChannel(const ChildChannel&) = delete;
  ChildChannel& operator=(const ChildChannel&) = delete;

  void send(const std::string& message) const { (void)::send(file_, message.data(), message.size(), MSG_NOSIGNAL); }
  // Waits for a message. Returns an empty one if the other process has ended.
  std::string receive() const {
    std::array<char, 4096> text{};
    const ssize_t size = ::recv(file_, text.data(), text.size(), 0);
    return {text.data(), size > 0 ? static_cast<std::size_t>(size) : 0};
  }
  std::string ask(const std::string& question) const {
    send(question);
    return receive();
  }

 private:
  const int file_;
};

// The process ends when `body` returns, and it is killed when the object goes.
class Child {
 public:
  explicit Child(const std::function<void(const ChildChannel&)>& body) : Child(body, connection()) {}
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  const ChildChannel& channel() const { return channel_; }
  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }

 private:
  static std::pair<int, int> connection() {
    std::array<int, 2> ends{-1, -1};
    (void)::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data());
    return {ends[0], ends[1]};
  }
  Child(const std::function<void(const ChildChannel&)>& body, std::pair<int, int> ends) : pid_(::fork()), channel_(ends.first) {
    if (pid_ == 0) {
      ::close(ends.first);  // so that this process notices the end of its parent
      body(ChildChannel(ends.second));
      ::_exit(0);
    }
    ::close(ends.second);
  }

  pid_t pid_;
  const ChildChannel channel_;
};

}  // namespace torch_ucc
