// Keys of the store that hold what nobody of us wrote.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "bootstrap/exchange.h"
#include "bootstrap/monitored_barrier.h"
#include "fakes/fake_kv_store.h"
#include "progress/bell.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace torch_ucc;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  FakeKvServer server;
  FakeKvStore store(server);
  const GiveUp at_once = [] { throw StatusError(Status(StatusCode::timeout, "nothing more comes")); };
  for (const int rank : {0, 1}) {
    server.set("b/1", bytes);
    server.set("b/verdict", bytes);
    try {
      wait_for_all({store, "b", rank, 2, 7, at_once}, milliseconds(1), true);
    } catch (const StatusError&) {  // it says what is wrong
    }
  }
  Bell::of_peer(bytes);
  return 0;
}
