#include "liveness/life_lines.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

namespace torch_ucc {
namespace {

constexpr std::chrono::seconds kToBeConnected{60};
// The kernel checks each second, so a connection ends after 4 s
constexpr milliseconds kSilence{3500};
constexpr std::size_t kAddresses = 8;  // how many addresses of a host are tried
constexpr std::size_t kGuests = 64;    // how many connections without the secret are kept
constexpr milliseconds kDeaf{200};     // how long nobody is accepted if there is no descriptor left

Ending meaning_of(int error) {
  switch (error) {
    case 0:
      return Ending::died;
    case ECONNRESET:
    case EPIPE:
      return Ending::reset;
    default:
      return Ending::unreachable;
  }
}

}  // namespace

LifeLines::LifeLines(std::uint64_t self, std::size_t size, std::size_t incoming, Answer answer)
    : self_(self), size_(size), answer_(std::move(answer)), incoming_(incoming), listen_until_(Deadline::after(kToBeConnected)) {
  if (incoming_ != 0 || answer_ != nullptr) {
    listener_ = Socket::listening();
  }
}

std::string LifeLines::address() const {
  LineAddress address;
  address.secret = secret_;
  address.port = listener_ ? listener_.port() : 0;
  address.hosts = own_addresses(kAddresses);
  return address.encode();
}

void LifeLines::connect(std::uint64_t peer, const LineAddress& address, milliseconds limit) {
  const Deadline by = Deadline::after(limit);
  begun_.push_back(peer);
  unsettled_.fetch_add(1, std::memory_order_acq_rel);
  std::istringstream hosts(address.hosts);
  std::size_t tried = 0;
  for (std::string host; tried < kAddresses && hosts >> host; ++tried) {
    Socket socket = Socket::connecting(host, address.port);
    if (!socket) {
      continue;
    }
    socket.watch_over(kSilence);
    lines_.push_back(
        {std::move(socket), State::connecting, peer, address.secret.answer, by, Hello{address.secret.knock, self_}.encode()});
  }
  if (lines_.empty() || lines_.back().peer != peer) {
    settle({Socket(), State::over, peer, "", by});
  }
}

void LifeLines::add_to(std::vector<pollfd>& polled) const {
  if (listener_ && deaf_until_.passed()) {
    polled.push_back({listener_.get(), POLLIN, 0});
  }
  for (const Line& line : lines_) {
    int events = line.out.empty() ? POLLIN : POLLIN | POLLOUT;
    if (line.state == State::connecting) {
      events = is_greeting(line.peer) ? 0 : POLLOUT;  // poll() reports an error in any case
    }
    polled.push_back({line.socket.get(), static_cast<short>(events), 0});
  }
}

Deadline LifeLines::next() const {
  Deadline next = listener_ && answer_ == nullptr ? listen_until_ : Deadline();
  if (!deaf_until_.passed()) {
    next = std::min(next, deaf_until_);
  }
  for (const Line& line : lines_) {
    if (line.state != State::up) {
      next = std::min(next, line.by);
    }
  }
  return next;
}

std::vector<Notice> LifeLines::serve() {
  std::vector<Notice> heard;
  if (listener_) {
    accept();
  }
  for (Line& line : lines_) {
    advance(line, heard);
  }
  lines_.remove_if([](const Line& line) { return line.state == State::over; });
  if (listener_ && answer_ == nullptr && (incoming_ == 0 || listen_until_.passed())) {
    listener_ = Socket();
  }
  return heard;
}

// Any program may connect. A rank sends the secret with its first bytes, so if there are too many
// connections without the secret, the oldest of them is closed. If this process may open no further
// descriptor, poll() would return at once again and again, so it pauses.
void LifeLines::accept() {
  const auto is_guest = [](const Line& line) { return line.state == State::awaits_hello; };
  for (std::size_t taken = 0; taken < kGuests; ++taken) {
    Socket socket = listener_.accepted();
    if (!socket) {
      // Whoever wants to connect stays in the queue of the kernel, and the listener readable
      deaf_until_ = errno == EMFILE || errno == ENFILE ? Deadline::after(kDeaf) : deaf_until_;
      return;
    }
    if (static_cast<std::size_t>(std::count_if(lines_.begin(), lines_.end(), is_guest)) >= kGuests) {
      end(*std::find_if(lines_.begin(), lines_.end(), is_guest));
    }
    socket.watch_over(kSilence);
    lines_.push_back({std::move(socket), State::awaits_hello, self_, secret_.knock, Deadline::after(kToConnect)});
  }
}

void LifeLines::advance(Line& line, std::vector<Notice>& heard) {
  // connected() also ends what has failed, for which poll() would return again and again
  if (line.state == State::connecting && connected(line) && !is_greeting(line.peer)) {
    line.out = line.hello;
    line.state = State::awaits_answer;
  }
  if (line.state != State::connecting && line.state != State::over) {
    flush(line);
    read(line, heard);
  }
  if (line.state != State::up && line.state != State::over && line.by.passed()) {
    if (line.state == State::awaits_answer) {
      // The peer may read the Hello later: then the end of this line must not look like the end of this process
      line.out += Notice{self_, Ending::left}.encode();
      flush(line);
    }
    end(line);
    settle(line);
  }
}

// Whether the secret was sent to `peer` over one of its addresses and its answer is awaited. Only
// one address at a time is used: two may lead to the peer, and when we closed the second line, the
// peer would conclude that this process has ended.
bool LifeLines::is_greeting(std::uint64_t peer) const {
  return std::any_of(lines_.begin(), lines_.end(),
                     [&](const Line& line) { return line.peer == peer && line.state == State::awaits_answer; });
}

bool LifeLines::connected(Line& line) {
  pollfd query{line.socket.get(), POLLOUT, 0};
  if (::poll(&query, 1, 0) <= 0) {
    return false;
  }
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(line.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
    end(line);
    settle(line);
    return false;
  }
  return true;
}

void LifeLines::read(Line& line, std::vector<Notice>& heard) {
  std::array<char, 4096> bytes{};
  while (line.state != State::over) {
    const ssize_t count = ::recv(line.socket.get(), bytes.data(), bytes.size(), 0);
    if (count > 0) {
      line.in.append(bytes.data(), static_cast<std::size_t>(count));
      understand(line, heard);
    } else if (count == 0) {
      lost(line, line.error, heard);
    } else if (errno != EINTR) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        lost(line, errno, heard);
      }
      return;
    }
  }
}

void LifeLines::lost(Line& line, int error, std::vector<Notice>& heard) {
  const bool was_up = line.state == State::up;
  end(line);
  if (was_up) {
    heard.push_back({line.peer, meaning_of(error)});
  } else {
    settle(line);
  }
}

void LifeLines::understand(Line& line, std::vector<Notice>& heard) {
  if (line.state == State::awaits_hello && line.in.size() >= Hello::kBytes) {
    const std::optional<Hello> hello = Hello::decode(std::string_view(line.in).substr(0, Hello::kBytes));
    const bool visits = hello && hello->from == Hello::kVisitor && answer_ != nullptr;
    // Two ranks may have a line each to the other, but a rank makes only one
    const auto is_known = [&](const Line& other) {
      return other.state == State::up && other.peer == hello->from && other.expected == line.expected;
    };
    if (!hello || !equal_secrets(hello->knock, line.expected) || (hello->from >= size_ && !visits) ||
        std::any_of(lines_.begin(), lines_.end(), is_known)) {
      end(line);  // another program
      return;
    }
    line.in.erase(0, Hello::kBytes);
    line.peer = visits ? self_ : hello->from;
    line.state = visits ? State::visited : State::up;
    line.out = secret_.answer;
    incoming_ -= incoming_ != 0 && !visits ? 1 : 0;
    flush(line);
  }
  if (line.state == State::visited) {
    serve_visitor(line);
  }
  if (line.state == State::awaits_answer && line.in.size() >= Secret::kHalf) {
    if (!equal_secrets(std::string_view(line.in).substr(0, Secret::kHalf), line.expected)) {
      end(line);
      settle(line);
      return;
    }
    line.in.erase(0, Secret::kHalf);
    line.state = State::up;
    settle(line);
  }
  while (line.state == State::up && line.in.size() >= Notice::kBytes) {
    const std::optional<Notice> notice = Notice::decode(std::string_view(line.in).substr(0, Notice::kBytes));
    line.in.erase(0, Notice::kBytes);
    if (!notice || notice->peer >= size_) {
      end(line);
      // The peer knows the secret, but its notice cannot be decoded
      heard.push_back({line.peer, Ending::unreachable});
      return;
    }
    heard.push_back(*notice);
    if (notice->peer == line.peer) {
      end(line);  // nothing more comes
    }
  }
}

// The visitor closes the connection, or its time passes.
void LifeLines::serve_visitor(Line& line) {
  const std::optional<std::uint64_t> question = line.served ? std::nullopt : decode_number(line.in);
  line.served = line.served || question;
  if (line.served) {
    line.in.clear();
  }
  if (question) {
    try {
      const std::string answer = answer_(*question);
      line.out += encode_number(answer.size()) + answer;
    } catch (const std::bad_alloc&) {
      end(line);
      return;
    }
    flush(line);
  }
}

// An error is kept in `line.error`; read() reports it.
void LifeLines::flush(Line& line) {
  while (!line.out.empty()) {
    const ssize_t count = ::send(line.socket.get(), line.out.data() + line.sent, line.out.size() - line.sent, MSG_NOSIGNAL);
    if (count > 0) {
      line.sent += static_cast<std::size_t>(count);
      if (line.sent == line.out.size()) {
        line.out.clear();
        line.sent = 0;
      }
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      line.error = errno;
      line.out.clear();
      line.sent = 0;
    }
  }
}

void LifeLines::tell(const Notice& notice) {
  for (Line& line : lines_) {
    if (line.state == State::up) {
      line.out += notice.encode();
      flush(line);
    }
  }
}

// If received bytes were left unread, the kernel would reset the connection when it is closed, and
// the peer could lose the farewell.
void LifeLines::farewell(Ending how) {
  tell({self_, how});
  std::array<char, 4096> rest{};
  for (const Line& line : lines_) {
    if (line.state == State::up) {
      ::shutdown(line.socket.get(), SHUT_WR);
      while (::recv(line.socket.get(), rest.data(), rest.size(), 0) > 0) {
      }
    }
  }
}

std::vector<std::uint64_t> LifeLines::failed() const {
  const MutexLock lock(mutex_);
  return failed_;
}

// Called when the connection to one address of a peer is up or has failed. The line to the peer is
// settled when the first address works, or when the last has failed.
void LifeLines::settle(const Line& line) {
  const auto begun = std::find(begun_.begin(), begun_.end(), line.peer);
  if (line.state != State::up) {
    const bool another = std::any_of(lines_.begin(), lines_.end(), [&](const Line& other) {
      return other.peer == line.peer && (other.state == State::connecting || other.state == State::awaits_answer);
    });
    if (another || begun == begun_.end()) {
      return;
    }
    const MutexLock lock(mutex_);
    failed_.push_back(line.peer);
  }
  if (begun == begun_.end()) {
    return;
  }
  begun_.erase(begun);
  for (Line& other : lines_) {
    if (other.peer == line.peer && (other.state == State::connecting || other.state == State::awaits_answer)) {
      end(other);
    }
  }
  unsettled_.fetch_sub(1, std::memory_order_acq_rel);
}

void LifeLines::end(Line& line) {
  line.socket = Socket();
  line.state = State::over;
}

}  // namespace torch_ucc
