#include "bootstrap/relay.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <utility>

namespace torch_ucc {
namespace {

constexpr int kMostWaiting = 1024;  // connections that the reader has not accepted yet
constexpr int kKind = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

// A name in the abstract namespace of sockets begins with a zero byte.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  const std::size_t hash = std::hash<std::string>()(name);
  const std::string text = "torch_ucc_relay_" + std::to_string(::getuid()) + "_" + std::to_string(hash);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(&address.sun_path[1], text.data(), text.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size())};
}

bool is_of_same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::getuid();
}

// A message with one descriptor, which holds the text: a message of any length is passed on without
// waiting for the one that receives it.
struct Message {
  Message() {
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  char byte = 0;
  iovec bytes{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
};

int file_with(const std::string& text) {
  // To make a file longer than this limit ends the process.
  rlimit longest{};
  if (::getrlimit(RLIMIT_FSIZE, &longest) != 0 || longest.rlim_cur < text.size()) {
    return -1;
  }
  const int file = ::memfd_create("torch_ucc_relay", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) {
    return -1;
  }
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t more = ::write(file, text.data() + written, text.size() - written);
    if (more <= 0) {
      break;
    }
    written += static_cast<std::size_t>(more);
  }
  if (written != text.size() || ::fcntl(file, F_ADD_SEALS, kSeals) != 0) {
    ::close(file);
    return -1;
  }
  return file;
}

std::optional<std::string> text_in(int file) {
  struct stat info {};
  const int seals = ::fcntl(file, F_GET_SEALS);
  if (::fstat(file, &info) != 0 || seals < 0 || (seals & kSeals) != kSeals) {
    return std::nullopt;
  }
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t read = 0;
  while (read < text.size()) {
    const ssize_t more = ::pread(file, text.data() + read, text.size() - read, static_cast<off_t>(read));
    if (more <= 0) {
      return std::nullopt;
    }
    read += static_cast<std::size_t>(more);
  }
  return text;
}

}  // namespace

Relay::Relay(const std::string& name) {
  const auto [address, size] = address_of(name);
  const auto* const place = reinterpret_cast<const sockaddr*>(&address);
  const int socket = ::socket(AF_UNIX, kKind, 0);
  if (socket < 0) {
    return;
  }
  if (::bind(socket, place, size) == 0) {
    if (::listen(socket, kMostWaiting) == 0) {
      listener_ = socket;
      return;
    }
  } else if (errno == EADDRINUSE && ::connect(socket, place, size) == 0 && is_of_same_user(socket)) {
    asked_ = socket;
    return;
  }
  ::close(socket);
}

Relay::~Relay() {
  stop_asking();
  if (listener_ >= 0) {
    ::close(listener_);
  }
}

void Relay::stop_asking() {
  if (asked_ >= 0) {
    ::close(std::exchange(asked_, -1));
  }
}

std::optional<std::string> Relay::receive() {
  Message message;
  const ssize_t got = ::recvmsg(asked_, &message.header, MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    return std::nullopt;
  }
  stop_asking();
  const cmsghdr* const control = got <= 0 ? nullptr : CMSG_FIRSTHDR(&message.header);
  if (control == nullptr || control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS ||
      control->cmsg_len != CMSG_LEN(sizeof(int))) {
    return std::nullopt;
  }
  int file = -1;
  std::memcpy(&file, CMSG_DATA(control), sizeof(file));
  std::optional<std::string> text = text_in(file);
  ::close(file);
  return text;
}

bool Relay::is_asked() const {
  pollfd waiting{listener_, POLLIN, 0};
  return listener_ >= 0 && ::poll(&waiting, 1, 0) > 0;
}

void Relay::pass_on(const std::string& text) const {
  if (listener_ < 0) {
    return;
  }
  const int file = file_with(text);
  for (int peer = -1; file >= 0 && (peer = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
    if (is_of_same_user(peer)) {
      Message message;
      cmsghdr* const control = CMSG_FIRSTHDR(&message.header);
      control->cmsg_level = SOL_SOCKET;
      control->cmsg_type = SCM_RIGHTS;
      control->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(control), &file, sizeof(file));
      ::sendmsg(peer, &message.header, MSG_NOSIGNAL);
    }
    ::close(peer);
  }
  if (file >= 0) {
    ::close(file);
  }
}

}  // namespace torch_ucc
