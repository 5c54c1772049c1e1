// The memory of one process for the boards of all groups of a context and for messages, and the
// mapped memory of its neighbours, which are the other ranks of the context on its host.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/shared_memory.h"
#include "base/thread_annotations.h"
#include "progress/bell.h"
#include "progress/failure_domain.h"
#include "shm/board.h"
#include "shm/mail_box.h"

namespace torch_ucc::shm {

// A process maps the memory of its neighbours read-only, once for all groups. The face of a group
// lies at an offset that follows from the number of the group, so a further group costs no
// agreement, and an idle group costs address space only.
class Arena {
 public:
  struct Neighbour {
    std::uint64_t position = 0;  // in the context
    std::string address;         // of its arena
    std::string name;            // in errors
  };

  // Makes the memory of this process. Throws std::bad_alloc.
  Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Returns the text with which the neighbours open the memory; empty if they cannot.
  std::string address() const { return own_.address(); }

  // Maps the memory of all neighbours, and shows them whether this was possible. To be called once.
  void map(std::uint64_t self, const std::vector<Neighbour>& neighbours);

  // Whether all neighbours and this process can map each other. The answer is the same for all of
  // them; nothing while some have not finished map().
  std::optional<bool> is_common() const;
  // Saves a descriptor. To be called when is_common() has answered.
  void close_file() { own_.close_file(); }
  // Why it is not common, as far as this process knows. Only valid once is_common() is false.
  std::string why_not() const;

  // The memory for messages between this process and a neighbour. Only valid once is_common() is true.
  struct Boxes {
    MailBox* mine;
    const MailBox* theirs;
  };
  Boxes boxes_with(std::uint64_t position);

  // Makes the board of a group. Returns null if it cannot be: the arena is not common, a member is
  // no neighbour, or the number is too high. All members get the same answer. `id` differs from
  // that of any other group that the context ever had; `positions` are by rank of the group. The
  // arena must outlive the board. Any thread.
  std::shared_ptr<Board> open(std::uint16_t id, const std::vector<std::uint64_t>& positions, int rank, Bells bells,
                              std::shared_ptr<FailureDomain> domain);
  // Shows the other members that this rank has left the group. Its memory is given back when they
  // have left, too, which this looks at whenever a group opens or closes. Any thread.
  void close(std::uint16_t id, const std::shared_ptr<Board>& board);

  // The size of a slot where `ranks` ranks share a host. More ranks share cores more often, and then
  // each step costs a switch between processes, so they get longer slots. A collective in which each
  // rank reads from all others does so in shares of at least 2 KB. 2 and 4 ranks on 2 cores of an AMD
  // EPYC (1 MB of second-level cache) reduce 1 MB in 54 and 179 us; with slots of 32 KB it takes 2
  // ranks 63 us, and with slots of 64 KB 4 ranks 313 us.
  static std::size_t slot_bytes(std::size_t ranks);

 private:
  struct Head;
  struct Closed {
    std::uint16_t id;
    std::shared_ptr<Board> board;
  };

  // Gives the memory of closed groups back that no member reads any more.
  void give_back() TUCC_REQUIRES(mutex_);
  std::size_t face_bytes() const;
  // Where the face of a group begins in the memory of any process.
  std::size_t offset_of(std::uint16_t id) const;
  // The place of a process among the processes of the host, by position.
  std::size_t place_of(std::uint64_t position) const;
  MailBox* box_in(const SharedMemory& memory, std::uint64_t reader) const;
  Board::Place place_in(const SharedMemory& memory, std::uint16_t id) const;

  SharedMemory own_;
  std::size_t slot_bytes_ = 0;
  std::size_t faces_ = 0;              // for how many groups there is room
  std::size_t neighbours_in_all_ = 0;  // also those that cannot be mapped
  std::map<std::uint64_t, SharedMemory> neighbours_;
  std::uint64_t self_ = 0;
  std::string missing_;  // the neighbour that cannot be mapped, if there is one

  Mutex mutex_;  // groups are closed from several threads
  std::vector<Closed> closed_ TUCC_GUARDED_BY(mutex_);
};

}  // namespace torch_ucc::shm
