// Wakes a sleeping process when a peer on its host posts an operation. UCC itself can only be
// polled.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/shared_memory.h"

namespace torch_ucc {

// The bell of one process: a page of memory that its peers on the host map, too. The memory has no
// name in a file system, so nothing is left when the process is killed. While no thread sleeps, a
// ring costs one fence and one load. All members may be called from any thread.
class Bell {
 public:
  // Makes the bell of this process. If the kernel gives no shared memory, only this process can
  // ring it. Throws std::bad_alloc.
  Bell();
  ~Bell() = default;
  Bell(Bell&& other) noexcept = default;
  Bell& operator=(Bell&&) = delete;
  Bell(const Bell&) = delete;

  // Returns the text with which a peer on this host opens the bell; empty if no peer can.
  std::string address() const { return memory_.address(); }

  // Opens the bell of another process. Returns nothing if that process is on another host, in
  // another container, of another user, or has ended.
  static std::optional<Bell> of_peer(const std::string& address);

  // Wakes all threads that sleep on the bell, or on any of `bells`.
  void ring() const;
  static void ring(const std::vector<const Bell*>& bells);

  // The page also has the presence and the last call of its process. Peers can read them even if
  // the process is stopped or dead. `leaving`: the process closes; its peers have not agreed yet.
  enum class Presence : std::uint32_t { here, leaving, left };
  void set_presence(Presence presence) const;
  Presence presence() const;
  // The last call. The caller defines what the numbers mean; all zero: there was no call.
  struct Activity {
    std::uint16_t group = 0;
    std::uint16_t operation = 0;
    std::uint32_t seq = 0;
    Clock::time_point since;  // this host's steady clock
  };
  void set_activity(const Activity& activity) const;
  Activity activity() const;

  // A sleep in three steps, so that no ring is lost: the thread makes a Sleep, which announces it
  // as a sleeper; checks once more what it waits for; then calls wait().
  class Sleep {
   public:
    explicit Sleep(const Bell& bell);
    ~Sleep();
    Sleep(const Sleep&) = delete;
    Sleep& operator=(const Sleep&) = delete;

    // Sleeps until the bell rings, or for `duration`. Returns whether the bell has rung since the
    // announcement.
    bool wait(Clock::duration duration);

   private:
    const Bell& bell_;
    const std::uint32_t heard_;
  };

 private:
  struct Page;

  explicit Bell(SharedMemory memory);
  void wake_sleepers() const;

  SharedMemory memory_;
  Page* page_;
};

// How the members of a group wake each other.
struct Bells {
  // Of the other members on this host; they must outlive the group
  std::vector<const Bell*> on_host;
  bool complete = false;  // every other member has a bell in `on_host`
};

}  // namespace torch_ucc
