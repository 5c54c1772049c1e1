// TCP sockets that never block and that a forked child does not keep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/deadline.h"

namespace torch_ucc {

// Owns one, or none. A child that is forked, say to load data, closes its copy at once: else the
// other end would not notice when the parent is killed.
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

  // On every address of this host, on a port of the system's choice. Throws std::system_error.
  static Socket listening();
  // Begins to connect to a numeric address; none if that cannot even begin.
  static Socket connecting(const std::string& host, std::uint16_t port);
  // The next connection to a listening one; none if there is none.
  Socket accepted() const;

  explicit operator bool() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }
  std::uint16_t port() const;  // our own; throws std::system_error

  // From now on the kernel asks each second whether the other end is there, and gives up after
  // `silence`.
  void watch_over(milliseconds silence) const;

 private:
  explicit Socket(int descriptor);
  void close();

  int descriptor_ = -1;
};

// Numeric addresses of this host that another might reach, separated by spaces, at most `count`.
std::string own_addresses(std::size_t count);

}  // namespace torch_ucc
