#include "liveness/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <system_error>

namespace torch_ucc {
namespace {

// The open sockets. Static memory without a lock, because a forked child can safely use little
// else. A child keeps open the sockets that do not fit into the table.
constinit std::array<std::atomic<int>, 256> open_sockets{};  // descriptor + 1

void close_all_in_child() {
  for (std::atomic<int>& each : open_sockets) {
    if (const int entry = each.exchange(0); entry != 0) {
      ::close(entry - 1);
    }
  }
}

void exchange_entry(int from, int to) {
  for (std::atomic<int>& each : open_sockets) {
    int expected = from;
    if (each.compare_exchange_strong(expected, to)) {
      return;
    }
  }
}

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

void set(int socket, int level, int name, int value) { ::setsockopt(socket, level, name, &value, sizeof(value)); }

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }

  static std::optional<Address> parse(const std::string& host, std::uint16_t port) {
    Address address;
    auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
      v4->sin_family = AF_INET;
      v4->sin_port = htons(port);
      address.size = sizeof(sockaddr_in);
    } else if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
      v6->sin6_family = AF_INET6;
      v6->sin6_port = htons(port);
      address.size = sizeof(sockaddr_in6);
    } else {
      return std::nullopt;
    }
    return address;
  }

  static Address any(int family) {
    Address address;
    address.storage.ss_family = static_cast<sa_family_t>(family);
    address.size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    return address;
  }
};

// Whether other hosts may reach the address. They cannot reach loopback and link-local addresses.
bool is_reachable(const ifaddrs& interface) {
  if (interface.ifa_addr == nullptr || (interface.ifa_flags & IFF_UP) == 0 || (interface.ifa_flags & IFF_LOOPBACK) != 0) {
    return false;
  }
  if (interface.ifa_addr->sa_family == AF_INET) {
    return true;
  }
  return interface.ifa_addr->sa_family == AF_INET6 &&
         !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(interface.ifa_addr)->sin6_addr);
}

}  // namespace

Socket::Socket(int descriptor) : descriptor_(descriptor) {
  static const int registered = ::pthread_atfork(nullptr, nullptr, close_all_in_child);
  (void)registered;
  if (descriptor_ >= 0) {
    exchange_entry(0, descriptor_ + 1);
  }
}

void Socket::close() {
  if (descriptor_ >= 0) {
    exchange_entry(descriptor_ + 1, 0);
    ::close(std::exchange(descriptor_, -1));
  }
}

// Listens for IPv6 and IPv4 with one IPv6 socket; only for IPv4 if the kernel has no IPv6.
Socket Socket::listening() {
  for (const int family : {AF_INET6, AF_INET}) {
    Socket socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket) {
      continue;
    }
    if (family == AF_INET6) {
      set(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    }
    const Address any = Address::any(family);
    if (::bind(socket.get(), any.get(), any.size) == 0 && ::listen(socket.get(), 128) == 0) {
      return socket;
    }
  }
  fail("listening for ranks of other hosts");
}

Socket Socket::connecting(const std::string& host, std::uint16_t port) {
  const std::optional<Address> address = Address::parse(host, port);
  if (!address) {
    return {};
  }
  Socket socket(::socket(address->storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket && ::connect(socket.get(), address->get(), address->size) != 0 && errno != EINPROGRESS) {
    return {};
  }
  return socket;
}

Socket Socket::accepted() const { return Socket(::accept4(descriptor_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)); }

std::uint16_t Socket::port() const {
  Address own;
  own.size = sizeof(own.storage);
  if (::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&own.storage), &own.size) != 0) {
    fail("asking for the port of a socket");
  }
  return ntohs(own.storage.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&own.storage)->sin6_port
                                                 : reinterpret_cast<const sockaddr_in*>(&own.storage)->sin_port);
}

// With the defaults of the kernel, the loss of a host would be noticed only after hours.
void Socket::watch_over(milliseconds silence) const {
  set(descriptor_, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(descriptor_, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(descriptor_, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(descriptor_, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(silence.count()));
  set(descriptor_, IPPROTO_TCP, TCP_NODELAY, 1);
}

std::string own_addresses(std::size_t count) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    return "";
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  std::string text;
  for (const ifaddrs* each = list; each != nullptr && count != 0; each = each->ifa_next) {
    if (!is_reachable(*each)) {
      continue;
    }
    std::array<char, NI_MAXHOST> name{};
    const socklen_t size = each->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (::getnameinfo(each->ifa_addr, size, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST) == 0) {
      text += (text.empty() ? "" : " ") + std::string(name.data());
      --count;
    }
  }
  return text;
}

}  // namespace torch_ucc
