// What a sleeping process is woken by when a peer on its host posts: UCC itself can only be polled.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"

namespace torch_ucc {

// One process's bell, in memory that its peers on the host map as well: nothing that has a name, so
// nothing is left when the process is killed. Ringing costs one load while nobody sleeps. Any
// thread.
class Bell {
 public:
  // A bell of our own. If the system gives no shared memory, one that only this process can ring.
  Bell();
  ~Bell();
  Bell(Bell&& other) noexcept;
  Bell& operator=(Bell&&) = delete;
  Bell(const Bell&) = delete;

  // How a peer on this host finds it; empty if it cannot.
  std::string address() const;

  // The bell at `address` of another process, or nothing: on another host, in another container, of
  // another user, or gone.
  static std::optional<Bell> of_peer(const std::string& address);

  // Wakes who sleeps on it, or on each of several.
  void ring() const;
  static void ring(const std::vector<const Bell*>& bells);

  // The page carries two words about its process as well, which peers can read whatever state that
  // is in, even stopped or dead. Whether it means to stay:
  enum class Presence : std::uint32_t { here, leaving, left };  // leaving: of its own accord, without its peers' knowing
  void set_presence(Presence presence) const;
  Presence presence() const;
  // And its last call, in numbers that mean something to the caller; all zero: none.
  struct Activity {
    std::uint16_t group = 0;
    std::uint16_t operation = 0;
    std::uint32_t seq = 0;
    Clock::time_point since;  // this host's steady clock
  };
  void set_activity(const Activity& activity) const;
  Activity activity() const;

  // A sleep in three steps, so that no ring is lost: announce it, look once more for what would be
  // waited for, then sleep.
  class Sleep {
   public:
    explicit Sleep(const Bell& bell);
    ~Sleep();
    Sleep(const Sleep&) = delete;
    Sleep& operator=(const Sleep&) = delete;

    // Until rung since the announcement, or for `duration`; true if rung.
    bool wait(Clock::duration duration);

   private:
    const Bell& bell_;
    const std::uint32_t heard_;
  };

 private:
  struct Page;

  Bell(Page* page, int file);
  void wake_sleepers() const;

  Page* page_;
  int file_;
};

}  // namespace torch_ucc
