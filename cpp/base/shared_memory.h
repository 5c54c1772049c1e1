// Memory that processes on one host share, without a name in a file system: nothing is left behind
// when a process is killed, and the size of /dev/shm does not limit it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace torch_ucc {

// The memory begins with a random key, by which a peer knows that it has opened the right memory.
// Users leave the first kKeyBytes alone. Its size never changes, so a peer that misbehaves cannot
// make an access to the mapping fail. All members may be called from any thread.
class SharedMemory {
 public:
  static constexpr std::size_t kKeyBytes = sizeof(std::uint64_t);
  enum class Access : unsigned char { read, write };

  // Makes `bytes` of zeroed memory; pages that are never touched take no memory. `name` is shown by
  // the tools of the system. If the kernel gives no shared memory, only this process can use it.
  // Throws std::bad_alloc.
  SharedMemory(const char* name, std::size_t bytes);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  SharedMemory(const SharedMemory&) = delete;

  // Returns the text with which a process on this host opens the memory; empty if none can.
  std::string address() const;

  // Opens the memory of another process, and maps the first `mapped` of its `bytes` bytes. Returns
  // nothing if that process is on another host, in another container, of another user, or has
  // ended, or if its memory has another size.
  static std::optional<SharedMemory> of_peer(const std::string& address, std::size_t bytes, std::size_t mapped, Access access);

  void* data() const { return data_; }

  // Unmaps all but the first `bytes` bytes.
  void trim(std::size_t bytes);

  // Gives up the descriptor of the memory: no further process can open it then, and those that have
  // opened it keep it.
  void close_file();

  // Gives whole pages back to the kernel; they read as zero afterwards, in all processes. Only for
  // the process that made the memory.
  void discard(std::size_t offset, std::size_t bytes) const;

 private:
  SharedMemory(int file, std::size_t mapped, void* data) : file_(file), mapped_(mapped), data_(data) {}

  int file_;  // of the process that made the memory; -1 for a peer
  std::size_t mapped_;
  void* data_;
};

}  // namespace torch_ucc
