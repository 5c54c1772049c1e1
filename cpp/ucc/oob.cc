#include "ucc/oob.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include "bootstrap/backoff.h"

namespace torch_ucc {
namespace {

// How long rank 0, which may host the store, waits for the other ranks to read. All have published
// by then. It never waits longer than half of the time that is left, because the thread that waits
// for the end of the context gives up at the deadline.
constexpr std::chrono::seconds kForReaders{1};

}  // namespace

struct Oob::Request {
  Oob& oob;
  std::string name;
  Exchange exchange;
  std::unique_ptr<Relay> relay;
  char* all;
  std::size_t size;
  Backoff backoff;
  Deadline readers;   // how long to wait until the other ranks have read
  bool read = false;  // this rank has read everything; only while closing
};

Oob::Oob(KvStore& store, std::string prefix, int rank, int size)
    : store_(store), prefix_(std::move(prefix)), rank_(rank), size_(size) {}

ucc_context_oob_coll_t Oob::params() {
  ucc_context_oob_coll_t params{};
  params.allgather = allgather;
  params.req_test = test;
  params.req_free = free;
  params.coll_info = this;
  params.n_oob_eps = static_cast<std::uint32_t>(size_);
  params.oob_ep = static_cast<std::uint32_t>(rank_);
  return params;
}

ucc_status_t Oob::failed(std::exception_ptr reason) {
  if (closing_) {
    return UCC_OK;
  }
  failure_ = std::move(reason);
  return UCC_ERR_NO_MESSAGE;
}

// C callbacks: nothing may be thrown through UCC.
ucc_status_t Oob::allgather(void* mine, void* all, std::size_t size, void* self, void** request) {
  auto& oob = *static_cast<Oob*>(self);
  *request = nullptr;
  try {
    if (const auto call = std::exchange(oob.on_next_exchange_, nullptr)) {
      call();
    }
    const std::string name = oob.prefix_ + "/oob/" + std::to_string(oob.calls_++);
    auto made = std::make_unique<Request>(
        Request{.oob = oob,
                .name = name,
                .exchange = Exchange(oob.store_, name, oob.rank_, oob.size_, std::string(static_cast<const char*>(mine), size)),
                .relay = nullptr,
                .all = static_cast<char*>(all),
                .size = size,
                .backoff = Backoff(oob.size_),
                .readers = {}});
    made->relay = Relay::among(oob.size_, name);
    *request = made.release();
    return UCC_OK;
  } catch (...) {
    return oob.failed(std::current_exception());
  }
}

ucc_status_t Oob::test(void* handle) {
  if (handle == nullptr) {
    return UCC_OK;  // allgather() failed while closing
  }
  auto& request = *static_cast<Request*>(handle);
  Oob& oob = request.oob;
  try {
    if (request.read) {
      return oob.wait_for_readers(request);
    }
    const auto values = request.exchange.poll(request.relay.get());
    if (!values) {
      if (oob.deadline_.passed()) {
        throw StatusError(Status(StatusCode::timeout, "timed out while the ranks exchanged addresses over the store"));
      }
      request.backoff.sleep(oob.give_up_);  // UCC calls again at once
      return UCC_INPROGRESS;
    }
    request.relay.reset();  // processes that ask later then read the store at once
    char* at = request.all;
    for (const std::string& value : *values) {
      if (value.size() != request.size) {
        throw StatusError(
            Status(StatusCode::transport,
                   "a rank published an address of the wrong size: check that all ranks have the same version of UCC"));
      }
      at = std::copy(value.begin(), value.end(), at);
    }
    if (!oob.closing_) {
      return UCC_OK;
    }
    request.read = true;
    request.readers = Deadline::after(std::min<Clock::duration>(kForReaders, oob.deadline_.left() / 2));
    request.backoff = Backoff();
    oob.store_.add(request.name + "/read", 1);
    return oob.wait_for_readers(request);
  } catch (...) {
    return oob.failed(std::current_exception());
  }
}

// If the store ends while other ranks still read, torch prints a trace on each of them.
ucc_status_t Oob::wait_for_readers(Request& request) {
  if (rank_ != 0 || request.readers.passed() || store_.add(request.name + "/read", 0) >= size_) {
    return UCC_OK;
  }
  request.backoff.sleep(give_up_);
  return UCC_INPROGRESS;
}

ucc_status_t Oob::free(void* handle) {
  delete static_cast<Request*>(handle);
  return UCC_OK;
}

}  // namespace torch_ucc
