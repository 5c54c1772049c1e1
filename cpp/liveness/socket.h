// TCP sockets that never block and that are closed in a forked child.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/deadline.h"

namespace torch_ucc {

// Owns a socket, or none. A forked child, for example a data loader, closes its copy at once:
// otherwise the peer would not notice when the parent is killed.
class Socket {
 public:
  Socket() = default;
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      close();
      descriptor_ = std::exchange(other.descriptor_, -1);
    }
    return *this;
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // Returns a socket that listens on all addresses of this host, on a port that the kernel chooses.
  // Throws std::system_error.
  static Socket listening();
  // Begins to connect to a numeric address. Returns an empty Socket if `host` is not such an
  // address or the kernel refuses at once.
  static Socket connecting(const std::string& host, std::uint16_t port);
  // Returns the next connection that this listening socket has received; an empty Socket if there
  // is none.
  Socket accepted() const;

  explicit operator bool() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }
  std::uint16_t port() const;  // of this end; throws std::system_error

  // From now on the kernel probes the peer each second, and ends the connection if the peer has not
  // answered for `silence`.
  void watch_over(milliseconds silence) const;

 private:
  explicit Socket(int descriptor);
  void close();

  int descriptor_ = -1;
};

// Returns at most `count` numeric addresses of this host that other hosts may reach, separated by
// spaces. Empty if the kernel does not list them.
std::string own_addresses(std::size_t count);

}  // namespace torch_ucc
