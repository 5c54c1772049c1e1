// Lets one process of a host read from the store what all processes there need.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch_ucc {

// The processes of one host that make a Relay of one name find each other through a socket without
// a name in a file system. The first one becomes the reader: it reads the store and passes the text
// on. The others ask it, and become readers, too, if the reader ends without an answer or cannot be
// reached. So a relay saves reads, and nothing depends on it.
//
// Only processes of the same user are believed. Not thread safe.
class Relay {
 public:
  explicit Relay(const std::string& name);
  // Makes a relay if so many ranks exchange something that it saves time.
  static std::unique_ptr<Relay> among(int ranks, const std::string& name) {
    return ranks >= kWorthIt ? std::make_unique<Relay>(name) : nullptr;
  }
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Whether this process has to read the store itself.
  bool reads() const { return asked_ < 0; }
  // For a process that does not read: returns the text of the reader, or nothing while there is
  // none. Never blocks. May change reads().
  std::optional<std::string> receive();
  // For a process that does not read: makes it read.
  void stop_asking();
  // Whether a process waits for the text of this one.
  bool is_asked() const;
  // For the reader: passes the text on to all that have asked so far. Never blocks.
  void pass_on(const std::string& text) const;

 private:
  static constexpr int kWorthIt = 3;  // with fewer ranks, one read saved is not worth a socket

  int listener_ = -1;  // of the reader
  int asked_ = -1;     // the connection to the reader
};

}  // namespace torch_ucc
