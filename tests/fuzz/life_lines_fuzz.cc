// A stranger, or a peer out of its mind, on the port of the life lines. The first byte says which,
// the second how much it sends at a time.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "liveness/life_lines.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace torch_ucc;
  constexpr std::size_t kRanks = 8;
  if (size < 2) {
    return 0;
  }
  LifeLines lines(1, kRanks, 1);
  const LineAddress address = LineAddress::decode(lines.address());
  std::string bytes(reinterpret_cast<const char*>(data + 2), size - 2);
  if (data[0] % 2 == 1) {
    bytes.insert(0, Hello{address.secret.knock, data[0] / 2U % (kRanks + 1)}.encode());
  }
  const Socket client = Socket::connecting("127.0.0.1", address.port);
  pollfd writable{client.get(), POLLOUT, 0};
  ::poll(&writable, 1, 1000);
  const std::size_t step = std::max<std::size_t>(data[1], 1);
  for (std::size_t at = 0; at < bytes.size(); at += step) {
    ::send(client.get(), bytes.data() + at, std::min(step, bytes.size() - at), MSG_NOSIGNAL | MSG_DONTWAIT);
    for (const Notice& notice : lines.serve()) {
      if (notice.peer >= kRanks) {
        std::abort();
      }
    }
  }
  lines.tell({3, Ending::died});
  lines.farewell(Ending::exited);
  return 0;
}
