// What a process may have run out of when a library only says that it failed.
#pragma once

#include <cstddef>
#include <new>
#include <string>
#include <system_error>

#include "base/status.h"

namespace torch_ucc {

// A sentence for each that is nearly or quite used up: file descriptors, room in /dev/shm; empty if
// there is enough of all.
std::string scarcity();

// Whether there are the descriptors that the libraries take to start, of which UCX ends the process
// when it lacks some.
bool has_descriptors_to_start();

// The same as scarcity() of given figures. `limit` and `size` 0: not known.
std::string scarcity_of(std::size_t descriptors, std::size_t limit, std::size_t shared_memory_free, std::size_t size);

// What `make` returns. Libraries say that they failed, and seldom what there was too little of: so
// an error of the transport or the system that leaves it says that as well. `what` begins the
// message of one of the system.
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
