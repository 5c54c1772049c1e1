// TCP connections to a few ranks of other hosts, over which nothing is said until somebody ends.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/thread_annotations.h"
#include "liveness/notice.h"
#include "liveness/socket.h"

namespace torch_ucc {

// A process that ends closes its connections, whatever ended it. A host that vanishes closes
// nothing: the kernel asks each second and gives a connection up after some four without an answer;
// a shorter silence harms nothing.
//
// Made and told whom to connect to by one thread, then used by one other. Nothing here blocks. Who
// does not know the secret in the address gets no line.
class LifeLines {
 public:
  // Listens on a port of the system's choice, for `incoming` lines; then the port is closed. Throws
  // std::system_error.
  LifeLines(std::uint64_t self, std::size_t size, std::size_t incoming);
  LifeLines(const LifeLines&) = delete;
  LifeLines& operator=(const LifeLines&) = delete;

  // What connect() of another rank needs.
  std::string address() const;

  // Begins a line; several ways to go there are tried at once.
  void connect(std::uint64_t peer, const LineAddress& address);

  // What to sleep on, and until when at the latest; and what to do then: returns what was heard.
  void add_to(std::vector<pollfd>& polled) const;
  Deadline next() const;
  std::vector<Notice> serve();

  // Over every line.
  void tell(const Notice& notice);

  // Tells everybody how this process goes; then nothing more may be told.
  void farewell(Ending how);

  // How many of those that were begun have neither become a line nor failed; any thread.
  std::size_t unsettled() const { return unsettled_.load(std::memory_order_acquire); }
  // To whom we have no line: all of them once none is unsettled; any thread.
  std::vector<std::uint64_t> failed() const;

 private:
  enum class State : std::uint8_t { connecting, awaits_answer, awaits_hello, up, over };
  struct Line {
    Socket socket;
    State state;
    std::uint64_t peer;
    std::string expected;  // the peer's half of the secret
    Deadline by{};         // to be up
    std::string hello{};   // ours, once connected
    std::string in{};      // read and not yet understood
    std::string out{};     // to be sent
    int error = 0;         // of a send
  };

  void accept();
  void advance(Line& line, std::vector<Notice>& heard);
  bool is_greeting(std::uint64_t peer) const;
  bool connected(Line& line);
  void read(Line& line, std::vector<Notice>& heard);
  void lost(Line& line, int error, std::vector<Notice>& heard);
  void understand(Line& line, std::vector<Notice>& heard);
  void flush(Line& line);
  void settle(const Line& line);
  void end(Line& line);

  const std::uint64_t self_;
  const std::size_t size_;
  const Secret secret_ = Secret::random();
  std::size_t incoming_;  // still to come
  Socket listener_;
  Deadline listen_until_;
  std::list<Line> lines_;
  std::vector<std::uint64_t> begun_;  // by connect(), not settled
  mutable Mutex mutex_;
  std::vector<std::uint64_t> failed_ TUCC_GUARDED_BY(mutex_);
  std::atomic<std::size_t> unsettled_{0};
};

}  // namespace torch_ucc
