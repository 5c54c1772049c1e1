// What each rank publishes before any library is started.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/status.h"
#include "bootstrap/peer_record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace torch_ucc;
  try {
    const PeerRecord record = PeerRecord::decode(std::string(reinterpret_cast<const char*>(data), size));
    if (PeerRecord::decode(record.encode()).encode() != record.encode()) {
      std::abort();
    }
    record.neighbourhood();
    check_peers("fuzz", {record, record});
  } catch (const StatusError&) {  // it says what is wrong
  }
  return 0;
}
