// The Python stack of another process on this host. A process offers it in its journal: it names a
// signal, and the descriptor of the memory to which the handler of this signal writes the stack
// (`python/torch_ucc/status/announce.py`).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace torch_ucc {

// No function blocks, and none waits for that process. A caller asks once, and reads until the text
// no longer grows.
struct StackOffer {
  int signal = 0;
  int descriptor = 0;

  // `journal` is the text of a journal (trace/journal.h). Returns the last offer in it.
  static std::optional<StackOffer> in(std::string_view journal);

  // Empties the memory and sends the signal. Returns false and does nothing if the process has no
  // handler for the signal, or if the descriptor is of something else.
  bool ask(long pid) const;
  // Returns what the memory contains; empty if it cannot be read.
  std::string read(long pid) const;
};

}  // namespace torch_ucc
