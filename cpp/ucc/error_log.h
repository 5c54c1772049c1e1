// Captures errors that UCC writes to its log and does not return.
#pragma once

#include <cstdint>
#include <string>

namespace torch_ucc {

// When a message to a rank that died fails, UCC may write an error to its log and still end the
// collective with UCC_OK and untouched data (all_reduce of 64 bytes over TCP does). So an operation
// that ended well while UCC logged an error does not count as a success until it is known which
// ranks have ended.
//
// UCC exports the hook of its log without declaring it. If it does not export the hook, or if
// UCC_LOG_LEVEL=fatal keeps errors out of the log, nothing is captured.
class ErrorLog {
 public:
  // Installs the hook; a second call does nothing. UCC must have been initialised before: UCC calls
  // the newest hook first, and its own hook prints.
  static void listen();

  // The number of errors that were captured so far. Any thread.
  static std::uint64_t count();
  // The text of the first error after the first `before` errors, which is nearest to the cause. If
  // this text is no longer kept, the oldest kept text; empty if there was no error since.
  static std::string first_since(std::uint64_t before);

  // While a Capture lives, errors that its thread makes UCC log are counted and not printed: they
  // become part of the message of the operation that fails.
  class Capture {
   public:
    Capture();
    ~Capture();
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;
  };

  // Counts a failure that UCC returned and may not have logged. Any thread.
  static void add(const std::string& text);
};

}  // namespace torch_ucc
