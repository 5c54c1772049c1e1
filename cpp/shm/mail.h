// Messages between this process and its neighbours, through shared memory.
//
// A process writes what it sends to its box for the receiver (see mail_box.h), and nowhere else. A
// message of up to kUnasked bytes is sent at once, so its send ends whether or not the receiver
// waits for it. A longer one is offered; its data follows when the receiver has accepted it. The
// receiver keeps messages that no receive waits for in memory of its own: of one sender up to
// kKept bytes, because then the sender offers its further messages, whatever their size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "messages/carrier.h"
#include "messages/tag_layout.h"
#include "progress/bell.h"
#include "shm/mail_box.h"

namespace torch_ucc::shm {

// A message that is given up is taken back at once: nothing of it remains, and the peer's side of it
// fails if it had begun. What a peer sends is checked; a peer that sends what cannot be fails the
// messages with that peer, and nothing else. Members that take a LoopToken need the baton.
class Mail final : public Carrier {
 public:
  static constexpr std::size_t kUnasked = std::size_t{64} << 10U;
  static constexpr std::size_t kKept = std::size_t{1} << 20U;

  struct Neighbour {
    std::uint64_t position = 0;  // in the context
    MailBox* mine = nullptr;     // the box of this process for the neighbour
    const MailBox* theirs = nullptr;
    const Bell* bell = nullptr;  // null if it cannot be rung
  };

  // `self` is the position of this process, which sends to itself without a box. The boxes and bells
  // must outlive the mail.
  Mail(std::uint64_t self, const std::vector<Neighbour>& neighbours);
  ~Mail() override;

  // `position` is that of a neighbour or of this process.
  void send(LoopToken& token, std::uint64_t position, std::uint64_t tag, Parcel& parcel) override;
  void receive(LoopToken& token, std::uint64_t position, std::uint64_t tag, Parcel& parcel) override;
  void receive_from_any(LoopToken& token, std::uint64_t tag, Parcel& parcel) override;
  bool receive_arrived(LoopToken& token, std::uint64_t tag, Parcel& parcel) override;
  void cancel(LoopToken& token, Parcel& parcel) override;
  bool cancels_at_once(std::uint64_t /*position*/) const override { return true; }

  Status progress(LoopToken& token) override;

  // Drops the messages of a group that no receive has matched. Called when this process closes the
  // group.
  void drop_group(LoopToken& token, std::uint16_t group);

  // Returns the text of a note from a neighbour, if one has arrived (see TagLayout::note()).
  std::optional<std::string> take_note(LoopToken& token);

 private:
  using Letter = MailReader::Letter;
  struct Peer;

  // A message that this process sends.
  struct Outgoing {
    Parcel* parcel;
    std::uint64_t tag;
    std::uint32_t number;
    std::size_t sent = 0;
    bool begun = false;
  };
  // A receive that no message has matched.
  struct Posted {
    Parcel* parcel;
    std::uint64_t tag;
    std::uint64_t mask;
    Peer* peer;  // null: from any, or from this process
  };
  // A message that no receive has matched. Either its data comes without being asked for, or the
  // sender has offered it, or it is from this process itself.
  struct Kept {
    Peer* peer;  // null: this process
    std::uint64_t tag;
    std::size_t bytes;
    std::uint32_t number;
    bool is_offer;
    std::unique_ptr<char[]> data{};
    std::size_t arrived = 0;
    Parcel* own = nullptr;  // the send, if it is from this process itself
  };
  // A message whose data is arriving.
  struct Incoming {
    std::uint32_t number;
    std::uint64_t tag;
    std::size_t bytes;
    std::size_t arrived;
    Parcel* parcel;  // null if nobody wants it any more, or if it is kept
    Kept* kept;      // where it is kept, if no receive has matched it
    bool is_unasked;
  };
  struct Answer {
    MailLine::Kind kind;
    std::uint32_t number;
  };

  Peer& peer_at(std::uint64_t position);
  void watch(Peer& peer);
  bool serve(Peer& peer);
  bool read(Peer& peer);
  bool take(Peer& peer, const Letter& letter);
  bool begin_incoming(Peer& peer, const Letter& letter);
  static bool go_on(Peer& peer, Incoming& incoming, const Letter& letter);
  static void answered(Peer& peer, const Letter& letter);
  static void given_back(Peer& peer, std::uint32_t number);
  void withdrawn(Peer& peer, std::uint32_t number);
  static bool write(Peer& peer);
  static bool announce(Peer& peer, Outgoing& outgoing);
  static bool stream(Peer& peer, Outgoing& outgoing);
  static bool send_part(Peer& peer, Outgoing& outgoing, MailLine::Kind kind);
  static void accept(Peer& peer, Parcel& parcel, std::uint64_t tag, std::size_t bytes, std::uint32_t number);
  std::list<Kept>::iterator kept_for(std::uint64_t tag, std::uint64_t mask);
  bool match_kept(const Posted& posted);
  void hand_over(std::list<Kept>::iterator kept, Parcel& parcel);
  Parcel* take_posted(std::uint64_t tag);
  void take_out(std::vector<Posted>::iterator posted);
  static void copy_own(Parcel& from, Parcel& to, std::uint64_t tag);
  bool is_closed(std::uint64_t tag) const { return closed_.contains(TagLayout::group_of(tag)); }
  void fail(Peer& peer, const std::string& why);

  const std::uint64_t self_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<Peer*> by_position_;
  std::vector<Peer*> watched_;  // something is in flight with them
  std::size_t look_ = 0;        // the next of the other peers to look at
  std::vector<Posted> posted_;  // in the order of the calls
  std::size_t from_any_ = 0;    // how many of them are from any
  std::list<Kept> kept_;        // in the order of arrival
  // Groups that were dropped. What still arrives for them is not kept: it would take up the room of
  // other messages for ever.
  std::unordered_set<std::uint16_t> closed_;
};

}  // namespace torch_ucc::shm
