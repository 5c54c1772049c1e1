// What UCC says to its log and to nobody else.
#pragma once

#include <cstdint>
#include <string>

namespace torch_ucc {

// When a message to a rank that died fails, UCC may end the collective with UCC_OK and untouched
// data (all_reduce of 64 bytes over TCP), and say so in its log only. So what ended while UCC
// logged an error is not believed before it is known who is gone.
//
// UCC exports its log's hook without declaring it. Where it does not, or UCC_LOG_LEVEL=fatal keeps
// errors from it, nothing is heard.
class ErrorLog {
 public:
  // From now on; idempotent. UCC must have been called before: it asks the newest hook first, and
  // its own prints.
  static void listen();

  // How many errors were captured so far; any thread.
  static std::uint64_t count();
  // The first after the first `before` of them, which is nearest to the cause.
  static std::string first_since(std::uint64_t before);

  // While it lives, what this thread makes UCC log as an error is counted and not printed: it is in
  // the message of what fails.
  class Capture {
   public:
    Capture();
    ~Capture();
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;
  };

  // For a failure that UCC returned and may not have logged.
  static void add(const std::string& text);
};

}  // namespace torch_ucc
