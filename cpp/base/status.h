// How a call ended: ok, or with a code that says what the caller can do and a message for people.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace torch_ucc {

// Classified by what the caller should do about it.
enum class StatusCode : std::uint8_t {
  ok,
  invalid,      // the call was wrong: correct it and call again; the group is usable
  unsupported,  // the call has no meaning here, or the library cannot do it; the group is usable
  // A deadline passed: a peer is late, stuck or gone; the group is not usable any more
  timeout,
  peer_gone,  // a rank of the group ended or was lost; the group is not usable any more
  transport,  // UCC, UCX or the store failed; the group is not usable any more
  // The ranks of a group called different operations; the group is not usable any more
  mismatch,
  closed,    // the group was shut down, aborted or had failed before this call
  internal,  // our own mistake: report it
};

// Whether an operation that ends so in the transport makes its group unusable.
constexpr bool fails_group(StatusCode code) { return code == StatusCode::transport || code == StatusCode::mismatch; }

// Every poll of UCC and UCX returns a Status, so an ok Status is cheap: it is a null pointer and
// has no message.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message)
      : failure_(code == StatusCode::ok ? nullptr : std::make_shared<const Failure>(code, std::move(message))) {}

  bool ok() const { return failure_ == nullptr; }
  StatusCode code() const { return ok() ? StatusCode::ok : failure_->code; }
  const std::string& message() const {
    static const std::string none;
    return ok() ? none : failure_->message;
  }

 private:
  struct Failure {
    Failure(StatusCode of, std::string text) : code(of), message(std::move(text)) {}
    StatusCode code;
    std::string message;
  };
  std::shared_ptr<const Failure> failure_;
};

// A Status as an exception, for constructors and for calls that block.
class StatusError : public std::runtime_error {
 public:
  explicit StatusError(Status status) : std::runtime_error(status.message()), status_(std::move(status)) {}
  const Status& status() const { return status_; }

 private:
  Status status_;
};

inline void throw_if_error(const Status& status) {
  if (!status.ok()) {
    throw StatusError(status);
  }
}

}  // namespace torch_ucc
