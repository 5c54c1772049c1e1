// TCP connections to a few other ranks. After a greeting they carry no data until a rank ends.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/thread_annotations.h"
#include "liveness/notice.h"
#include "liveness/socket.h"

namespace torch_ucc {

// When a process ends, the kernel closes its connections. A host that vanishes closes none: the
// kernel of the other host probes each second, and ends a connection after about four seconds
// without an answer. A shorter silence has no effect.
//
// One thread creates the object and calls connect(); then one other thread uses it. Only
// unsettled() and failed() may be called from any thread. No member blocks. A program that does not
// know the secret in the address gets no line.
//
// A visitor is a program with the secret that is no rank: `torch-ucc status`. It sends a Hello from
// Hello::kVisitor, receives the answer, sends its question, which is a number of 8 bytes (little
// endian), and receives the number of bytes of the answer to it (8 bytes) and this answer.
class LifeLines {
 public:
  // Called in the thread that calls serve(). Must not block.
  using Answer = std::function<std::string(std::uint64_t question)>;

  // `self` is our position and `size` the number of ranks. Listens on a port that the kernel
  // chooses. Ranks must connect within 60 s. With `answer`, visitors may connect until the end, and
  // otherwise it listens only until `incoming` lines are accepted or these 60 s have passed. Throws
  // std::system_error.
  LifeLines(std::uint64_t self, std::size_t size, std::size_t incoming, Answer answer = nullptr);
  LifeLines(const LifeLines&) = delete;
  LifeLines& operator=(const LifeLines&) = delete;

  // Returns our address, as text for the job's store. Other ranks decode it for their connect().
  std::string address() const;

  // The peer answers only after its own calls of connect().
  static constexpr milliseconds kToConnect{10'000};

  // Begins a line to `peer`: connects to several addresses of its host at once. The line counts as
  // unsettled until one of them works, or all have failed, or `limit` has passed.
  void connect(std::uint64_t peer, const LineAddress& address, milliseconds limit = kToConnect);

  // The thread that uses the lines sleeps on the descriptors that add_to() appends, until next() at
  // the latest. Then it calls serve(), which accepts, reads and writes, and returns the notices
  // that were received, or that follow from the loss of a line.
  void add_to(std::vector<pollfd>& polled) const;
  Deadline next() const;
  std::vector<Notice> serve();

  // Sends a notice over every line.
  void tell(const Notice& notice);

  // Sends over every line how this process ends. tell() must not be called afterwards.
  void farewell(Ending how);

  // Returns how many lines that connect() began have neither been made nor failed. Any thread.
  std::size_t unsettled() const { return unsettled_.load(std::memory_order_acquire); }
  // Returns the peers to which connect() made no line. The list is complete once unsettled() is 0.
  // Any thread.
  std::vector<std::uint64_t> failed() const;

 private:
  enum class State : std::uint8_t { connecting, awaits_answer, awaits_hello, visited, up, over };
  struct Line {
    Socket socket;
    State state;
    std::uint64_t peer;
    std::string expected;  // the half of the secret that the peer must send
    Deadline by{};         // when the line must be up
    std::string hello{};   // what we send once connected
    std::string in{};      // bytes that are read and not yet decoded
    std::string out{};     // bytes to be sent
    std::size_t sent = 0;  // of these, how many are sent
    bool served = false;   // whether a visitor has received its answer
    int error = 0;         // errno of a send that failed
  };

  void accept();
  void advance(Line& line, std::vector<Notice>& heard);
  bool is_greeting(std::uint64_t peer) const;
  bool connected(Line& line);
  void read(Line& line, std::vector<Notice>& heard);
  void lost(Line& line, int error, std::vector<Notice>& heard);
  void understand(Line& line, std::vector<Notice>& heard);
  void serve_visitor(Line& line);
  void flush(Line& line);
  void settle(const Line& line);
  void end(Line& line);

  const std::uint64_t self_;
  const std::size_t size_;
  const Secret secret_ = Secret::random();
  const Answer answer_;
  std::size_t incoming_;  // lines that are still to be accepted
  Socket listener_;
  Deadline deaf_until_ = Deadline::after(milliseconds(0));  // see accept()
  Deadline listen_until_;
  std::list<Line> lines_;
  // Peers of lines that connect() began and that are not settled
  std::vector<std::uint64_t> begun_;
  mutable Mutex mutex_;
  std::vector<std::uint64_t> failed_ TUCC_GUARDED_BY(mutex_);
  std::atomic<std::size_t> unsettled_{0};
};

}  // namespace torch_ucc
