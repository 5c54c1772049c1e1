// Facts about this process, as text that other processes on its host can read at any time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/thread_annotations.h"

namespace torch_ucc::trace {

// A fact has a key and a value, which is JSON. The text is a list of lines `key TAB value`, in the
// order in which the facts were set: the last line of a key counts, and a line without a value
// removes the fact. When lines that no longer count take most of the text, it is written anew.
//
// All members may be called from any thread. They allocate, and take a mutex that only writers take.
class Journal {
 public:
  // At the beginning of the memory; the text follows. Zeroed memory is an empty journal.
  struct Head {
    std::atomic<std::uint64_t> version;  // odd while the text is written anew
    std::atomic<std::uint64_t> size;     // bytes of text, stored after the text
  };

  // Writes to the first `bytes` bytes of `memory`. The memory must outlive the journal.
  Journal(void* memory, std::size_t bytes) : head_(static_cast<Head*>(memory)), room_(bytes - sizeof(Head)) {}
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // `key` must contain no tab, and neither may contain a line break. A fact that finds no room is
  // left out, until others are removed.
  void set(const std::string& key, const std::string& json);
  void remove(const std::string& key);

  // Returns the text of a journal, of this process or of another. Empty if a writer was stopped
  // while it wrote the text anew.
  static std::string read(const void* memory, std::size_t bytes);

 private:
  char* text() const { return reinterpret_cast<char*>(head_ + 1); }
  void append(const std::string& line) TUCC_REQUIRES(mutex_);
  void write_anew() TUCC_REQUIRES(mutex_);

  Head* const head_;
  const std::size_t room_;
  Mutex mutex_;  // many threads have facts, but rarely
  std::map<std::string, std::string> facts_ TUCC_GUARDED_BY(mutex_);
  std::size_t needed_ TUCC_GUARDED_BY(mutex_) = 0;  // bytes of the lines that count
};

}  // namespace torch_ucc::trace
