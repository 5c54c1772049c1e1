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

// UCC calls it while a context is created and while it is destroyed, so it must outlive the
// context. One call at a time.
class Oob {
 public:
  // `prefix` begins every key and must be new for this context.
  Oob(KvStore& store, std::string prefix, int rank, int size);
  Oob(const Oob&) = delete;
  Oob& operator=(const Oob&) = delete;

  // The parameters to hand to UCC; they point to this object.
  ucc_context_oob_coll_t params();

  // Exchanges under way fail when it passes.
  void set_deadline(Deadline deadline) { deadline_ = deadline; }

  // Called once, when UCC begins its next exchange.
  void set_on_next_exchange(std::function<void()> call) { on_next_exchange_ = std::move(call); }

  // What ends them earlier: see bootstrap/backoff.h.
  void set_give_up(GiveUp give_up) { give_up_ = std::move(give_up); }

  // From now on a store that is gone counts as a peer that is done: the process that hosted it has
  // left already. Rank 0, which hosts it where no launcher does, stays until the others have read
  // too, for a second at most.
  void set_closing() { closing_ = true; }

  // Throws why UCC was told that an exchange failed, if one was: UCC itself keeps only a number.
  // StatusError, or what check_interrupt() throws.
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
