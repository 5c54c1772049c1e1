// UCC's out-of-band allgather, carried by the store.
#pragma once

#include <ucc/api/ucc.h>

#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "base/status.h"
#include "bootstrap/exchange.h"
#include "bootstrap/kv_store.h"

namespace torch_ucc {

// UCC calls this object while a context is created and while it is destroyed, so the object must
// outlive the context. Only one thread at a time may use it.
class Oob {
 public:
  // Every key in the store begins with `prefix`, which no earlier context may have used.
  Oob(KvStore& store, std::string prefix, int rank, int size);
  Oob(const Oob&) = delete;
  Oob& operator=(const Oob&) = delete;

  // The parameters to hand to UCC; they point to this object.
  ucc_context_oob_coll_t params();

  // An exchange that is under way fails when the deadline passes.
  void set_deadline(Deadline deadline) { deadline_ = deadline; }

  // UCC's next exchange calls `call` once, when it begins.
  void set_on_next_exchange(std::function<void()> call) { on_next_exchange_ = std::move(call); }

  // `give_up` may end an exchange before the deadline: see bootstrap/backoff.h.
  void set_give_up(GiveUp give_up) { give_up_ = std::move(give_up); }

  // Says that the context is being destroyed. From now on an exchange that fails counts as done,
  // because the process that hosted the store may have left. Rank 0, which hosts the store unless a
  // launcher does, waits until the other ranks have read, for a second at most.
  void set_closing() { closing_ = true; }

  // If an exchange failed, throws the reason: StatusError, or what check_interrupt() threw. UCC
  // itself returns only a number.
  void rethrow_failure() const {
    if (failure_ != nullptr) {
      std::rethrow_exception(failure_);
    }
  }

 private:
  struct Request;

  static ucc_status_t allgather(void* mine, void* all, std::size_t size, void* self, void** request);
  static ucc_status_t test(void* request);
  static ucc_status_t free(void* request);
  ucc_status_t failed(std::exception_ptr reason);
  ucc_status_t wait_for_readers(Request& request);

  KvStore& store_;
  const std::string prefix_;
  const int rank_;
  const int size_;
  int calls_ = 0;
  bool closing_ = false;
  Deadline deadline_;
  GiveUp give_up_;
  std::function<void()> on_next_exchange_;
  std::exception_ptr failure_;
};

}  // namespace torch_ucc
