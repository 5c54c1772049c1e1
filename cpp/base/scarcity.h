// Finds out whether this process lacks file descriptors or shared memory. Libraries seldom report
// which resource was missing when they failed.
#pragma once

#include <cstddef>
#include <new>
#include <string>
#include <system_error>

#include "base/status.h"

namespace torch_ucc {

// Returns one sentence, which begins with a space, for each resource that is used up or nearly so:
// file descriptors and space in /dev/shm. Empty if there is enough of both.
std::string scarcity();

// Whether enough file descriptors are left to start UCX and UCC. UCX ends the process if it lacks
// descriptors while it starts.
bool has_descriptors_to_start();

// Returns the text of scarcity() for the given numbers: open descriptors and their limit, free and
// total bytes of /dev/shm. A `limit` or `size` of 0 means that it is not known.
std::string scarcity_of(std::size_t descriptors, std::size_t limit, std::size_t shared_memory_free, std::size_t size);

// Calls `make` and returns its result. If `make` throws a StatusError (transport),
// std::system_error or std::bad_alloc, throws a StatusError (transport) whose message ends with
// scarcity(). For the last two the message begins with `what`.
template <typename Make>
auto explaining_scarcity(const std::string& what, Make&& make) -> decltype(make()) {
  try {
    return make();
  } catch (const StatusError& error) {
    if (error.status().code() == StatusCode::transport) {
      if (const std::string scarce = scarcity(); !scarce.empty()) {
        throw StatusError(Status(StatusCode::transport, error.status().message() + "." + scarce));
      }
    }
    throw;
  } catch (const std::system_error& error) {
    throw StatusError(Status(StatusCode::transport, what + error.what() + "." + scarcity()));
  } catch (const std::bad_alloc&) {
    throw StatusError(Status(StatusCode::transport, what + "out of memory." + scarcity()));
  }
}

}  // namespace torch_ucc
