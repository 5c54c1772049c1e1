#include "shm/mail.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "messages/tag_layout.h"

namespace torch_ucc::shm {
namespace {

using Kind = MailLine::Kind;

// Data travels in parts of about a quarter of the message, so that the receiver copies one part
// while the sender copies the next.
constexpr std::size_t kLongest = std::size_t{32} << 10U;
constexpr std::size_t kShortest = std::size_t{4} << 10U;
std::size_t part_of(std::size_t bytes) { return std::clamp(bytes / 4, kShortest, kLongest); }

// After so many lines of one neighbour, the thread that drives looks at others.
constexpr int kLinesAtOnce = 16;

// What a message costs its receiver while no receive has matched it.
constexpr std::size_t kept_bytes(std::size_t bytes) { return bytes + 128; }

// Finds what has this number.
template <typename Queue>
auto numbered(Queue& queue, std::uint32_t number) {
  return std::find_if(queue.begin(), queue.end(), [&](const auto& each) { return each.number == number; });
}

Status withdrawn_status() { return {StatusCode::transport, "the sender has given up the message"}; }

}  // namespace

// What is under way between this process and one neighbour.
struct Mail::Peer {
  explicit Peer(const Neighbour& neighbour)
      : bell(neighbour.bell), writer(*neighbour.mine, *neighbour.theirs), reader(*neighbour.mine, *neighbour.theirs) {}

  bool is_busy() const {
    return awaited != 0 || !to_announce.empty() || !offered.empty() || !accepted.empty() || !incoming.empty() || !answers.empty();
  }

  const Bell* const bell;
  MailWriter writer;
  MailReader reader;
  std::uint32_t next_number = 0;
  std::uint64_t unasked = 0;     // bytes of messages sent without offer
  std::deque<Answer> answers{};  // to be sent
  std::deque<Outgoing> to_announce{};
  std::vector<Outgoing> offered{};
  std::deque<Outgoing> accepted{};
  std::vector<Incoming> incoming{};
  std::size_t awaited = 0;  // posted receives from this peer
  bool is_watched = false;
  bool rings = false;    // it may wait for lines that were taken, or for an answer
  std::string broken{};  // what the peer did that it may not do
};

Mail::Mail(std::uint64_t self, const std::vector<Neighbour>& neighbours) : self_(self) {
  for (const Neighbour& neighbour : neighbours) {
    peers_.push_back(std::make_unique<Peer>(neighbour));
    by_position_.resize(std::max<std::size_t>(by_position_.size(), neighbour.position + 1));
    by_position_[neighbour.position] = peers_.back().get();
  }
}

Mail::~Mail() = default;

Mail::Peer& Mail::peer_at(std::uint64_t position) { return *by_position_.at(position); }

void Mail::watch(Peer& peer) {
  if (!std::exchange(peer.is_watched, true)) {
    watched_.push_back(&peer);
  }
}

// --- sending

void Mail::send(LoopToken& token, std::uint64_t position, std::uint64_t tag, Parcel& parcel) {
  parcel.begin(token, *this);
  if (position == self_) {
    if (Parcel* const receive = take_posted(tag)) {
      copy_own(parcel, *receive, tag);
    } else {
      kept_.push_back({nullptr, tag, parcel.bytes(), 0, false, nullptr, 0, &parcel});
    }
    return;
  }
  Peer& peer = peer_at(position);
  if (!peer.broken.empty()) {
    parcel.ended(Status(StatusCode::transport, peer.broken));
    return;
  }
  peer.to_announce.push_back({&parcel, tag, peer.next_number++});
  write(peer);
  if (peer.is_busy()) {
    watch(peer);
  }
}

// Sends what there is room for. Returns whether it has sent anything. Rings no bell: an operation
// rings for the messages that it posts, and serve() for the rest.
bool Mail::write(Peer& peer) {
  bool wrote = false;
  while (!peer.answers.empty() && peer.writer.room(0) != nullptr) {
    peer.writer.put(peer.answers.front().kind, peer.answers.front().number, 0, 0, 0);
    peer.answers.pop_front();
    wrote = true;
  }
  while (!peer.to_announce.empty() && announce(peer, peer.to_announce.front())) {
    wrote = true;
  }
  while (!peer.accepted.empty() && stream(peer, peer.accepted.front())) {
    wrote = true;
  }
  return wrote;
}

// Sends the next line of the first message that the peer does not know of, or knows in part. Returns
// false if that is not possible now.
bool Mail::announce(Peer& peer, Outgoing& outgoing) {
  Parcel& parcel = *outgoing.parcel;
  const std::size_t bytes = parcel.bytes();
  if (!outgoing.begun) {
    const std::uint64_t cost = kept_bytes(bytes);
    const std::uint64_t kept = peer.unasked - std::min(peer.unasked, peer.writer.settled());
    const bool has_room = kept + cost <= kKept || outgoing.tag == TagLayout::note();  // nobody receives a note
    if (bytes > kUnasked || !has_room) {
      if (peer.writer.room(0) == nullptr) {
        return false;
      }
      peer.writer.put(Kind::offer, outgoing.number, outgoing.tag, bytes, 0);
      outgoing.begun = true;
      peer.offered.push_back(outgoing);
      peer.to_announce.pop_front();
      return true;
    }
  }
  const bool is_first = !outgoing.begun;
  if (!send_part(peer, outgoing, is_first ? Kind::whole : Kind::more)) {
    return false;
  }
  peer.unasked += is_first ? kept_bytes(bytes) : 0;
  outgoing.begun = true;
  if (outgoing.sent == bytes) {
    peer.to_announce.pop_front();
    parcel.ended({});
  }
  return true;
}

// Sends the next part of a message that the peer has accepted.
bool Mail::stream(Peer& peer, Outgoing& outgoing) {
  Parcel& parcel = *outgoing.parcel;
  if (!send_part(peer, outgoing, Kind::more)) {
    return false;
  }
  if (outgoing.sent == parcel.bytes()) {
    peer.accepted.pop_front();
    parcel.ended({});
  }
  return true;
}

// Sends a line with the next data of a message. Returns false if there is no room, or no data any
// more because the caller has its memory back.
bool Mail::send_part(Peer& peer, Outgoing& outgoing, Kind kind) {
  Parcel& parcel = *outgoing.parcel;
  const std::size_t length = std::min(part_of(parcel.bytes()), parcel.bytes() - outgoing.sent);
  char* const room = peer.writer.room(length);
  if (room == nullptr || !parcel.pack(outgoing.sent, room, length)) {
    return false;
  }
  peer.writer.put(kind, outgoing.number, outgoing.tag, parcel.bytes(), length);
  outgoing.sent += length;
  return true;
}

// The receiver of an offer has answered.
void Mail::answered(Peer& peer, const Letter& letter) {
  const auto at = numbered(peer.offered, letter.message);
  if (at == peer.offered.end()) {
    given_back(peer, letter.message);
    return;
  }
  const Outgoing outgoing = *at;
  peer.offered.erase(at);
  if (letter.kind == Kind::accept && outgoing.parcel->bytes() != 0) {
    peer.accepted.push_back(outgoing);
  } else {
    outgoing.parcel->ended({});
  }
}

// The receiver of a message that it had accepted has no use for it any more. Does nothing if the
// message has been sent, or taken back, meanwhile.
void Mail::given_back(Peer& peer, std::uint32_t number) {
  const auto at = numbered(peer.accepted, number);
  if (at == peer.accepted.end()) {
    return;
  }
  Parcel* const parcel = at->parcel;
  peer.accepted.erase(at);
  peer.answers.push_back({Kind::withdraw, number});
  parcel->ended(Status(StatusCode::transport, "the receiver has given up the message"));
}

// --- receiving

void Mail::receive(LoopToken& token, std::uint64_t position, std::uint64_t tag, Parcel& parcel) {
  parcel.begin(token, *this);
  Peer* const peer = position == self_ ? nullptr : &peer_at(position);
  const Posted posted{&parcel, tag, TagLayout::kExact, peer};
  if (match_kept(posted)) {
    return;
  }
  if (peer != nullptr && !peer->broken.empty()) {
    parcel.ended(Status(StatusCode::transport, peer->broken));
    return;
  }
  posted_.push_back(posted);
  if (peer != nullptr) {
    ++peer->awaited;
    watch(*peer);
  }
}

void Mail::receive_from_any(LoopToken& token, std::uint64_t tag, Parcel& parcel) {
  parcel.begin(token, *this);
  const Posted posted{&parcel, tag, TagLayout::kAnySource, nullptr};
  if (match_kept(posted)) {
    return;
  }
  posted_.push_back(posted);
  ++from_any_;
}

bool Mail::receive_arrived(LoopToken& token, std::uint64_t tag, Parcel& parcel) {
  const auto kept = kept_for(tag, TagLayout::kAnySource);
  if (kept == kept_.end()) {
    return false;
  }
  parcel.begin(token, *this);
  hand_over(kept, parcel);
  return true;
}

std::list<Mail::Kept>::iterator Mail::kept_for(std::uint64_t tag, std::uint64_t mask) {
  return std::find_if(kept_.begin(), kept_.end(), [&](const Kept& each) { return ((each.tag ^ tag) & mask) == 0; });
}

bool Mail::match_kept(const Posted& posted) {
  const auto kept = kept_for(posted.tag, posted.mask);
  if (kept == kept_.end()) {
    return false;
  }
  hand_over(kept, *posted.parcel);
  return true;
}

// Takes the receive that was posted first of those that a message with this tag matches; null if
// there is none.
Parcel* Mail::take_posted(std::uint64_t tag) {
  const auto at =
      std::find_if(posted_.begin(), posted_.end(), [&](const Posted& each) { return ((each.tag ^ tag) & each.mask) == 0; });
  if (at == posted_.end()) {
    return nullptr;
  }
  Parcel* const parcel = at->parcel;
  take_out(at);
  return parcel;
}

void Mail::take_out(std::vector<Posted>::iterator posted) {
  if (posted->peer != nullptr) {
    --posted->peer->awaited;
  } else if (posted->mask == TagLayout::kAnySource) {
    --from_any_;
  }
  posted_.erase(posted);
}

// Gives a receive the message that was kept for it.
void Mail::hand_over(std::list<Kept>::iterator kept, Parcel& parcel) {
  if (kept->own != nullptr) {
    copy_own(*kept->own, parcel, kept->tag);
  } else if (kept->is_offer) {
    accept(*kept->peer, parcel, kept->tag, kept->bytes, kept->number);
    watch(*kept->peer);
    kept->peer->rings = write(*kept->peer) || kept->peer->rings;
  } else {
    parcel.unpack(0, kept->data.get(), kept->arrived);
    if (kept->arrived == kept->bytes) {
      kept->peer->reader.settle(kept_bytes(kept->bytes));
      parcel.ended({}, TagLayout::source_of(kept->tag), kept->bytes);
    } else {
      for (Incoming& incoming : kept->peer->incoming) {
        if (incoming.kept == &*kept) {
          incoming.kept = nullptr;
          incoming.parcel = &parcel;
        }
      }
    }
  }
  kept_.erase(kept);
}

// A receive has matched an offer.
void Mail::accept(Peer& peer, Parcel& parcel, std::uint64_t tag, std::size_t bytes, std::uint32_t number) {
  if (bytes != parcel.bytes() || bytes == 0) {
    peer.answers.push_back({Kind::decline, number});
    parcel.ended({}, TagLayout::source_of(tag), bytes);
    return;
  }
  peer.answers.push_back({Kind::accept, number});
  peer.incoming.push_back({number, tag, bytes, 0, &parcel, nullptr, false});
}

void Mail::copy_own(Parcel& from, Parcel& to, std::uint64_t tag) {
  const std::size_t bytes = std::min(from.bytes(), to.bytes());
  const auto part = std::make_unique_for_overwrite<char[]>(std::min(bytes, kLongest));
  for (std::size_t at = 0; at < bytes; at += kLongest) {
    const std::size_t length = std::min(kLongest, bytes - at);
    if (!from.pack(at, part.get(), length)) {
      from.ended(withdrawn_status());
      to.ended(withdrawn_status());
      return;
    }
    to.unpack(at, part.get(), length);
  }
  const std::size_t length = from.bytes();
  from.ended({});
  to.ended({}, TagLayout::source_of(tag), length);
}

// Reads what the peer has sent. Returns whether there was anything.
bool Mail::read(Peer& peer) {
  bool any = false;
  for (int i = 0; i < kLinesAtOnce && peer.broken.empty() && peer.reader.has_next(); ++i) {
    any = true;
    bool is_sound = true;
    const Letter letter = peer.reader.next(is_sound);
    if (!is_sound || !take(peer, letter)) {
      fail(peer, "the memory through which that rank sends is corrupt");
      return true;
    }
    peer.rings = peer.reader.take(letter) || peer.rings;
  }
  return any;
}

// Returns false if the line cannot be.
bool Mail::take(Peer& peer, const Letter& letter) {
  switch (letter.kind) {
    case Kind::whole:
      if (letter.bytes > kUnasked || letter.length > letter.bytes) {
        return false;
      }
      return begin_incoming(peer, letter);
    case Kind::offer:
      if (Parcel* const parcel = take_posted(letter.tag)) {
        accept(peer, *parcel, letter.tag, letter.bytes, letter.message);
      } else if (is_closed(letter.tag)) {
        peer.answers.push_back({Kind::decline, letter.message});
      } else {
        kept_.push_back({&peer, letter.tag, letter.bytes, letter.message, true});
      }
      return true;
    case Kind::more: {
      const auto at = numbered(peer.incoming, letter.message);
      return at != peer.incoming.end() && go_on(peer, *at, letter);
    }
    case Kind::accept:
    case Kind::decline:
      answered(peer, letter);
      return true;
    case Kind::withdraw:
      withdrawn(peer, letter.message);
      return true;
  }
  return false;
}

// The first data of a message that comes without being asked for. Returns false if it cannot be.
bool Mail::begin_incoming(Peer& peer, const Letter& letter) {
  Incoming incoming{letter.message, letter.tag, letter.bytes, 0, take_posted(letter.tag), nullptr, true};
  if (incoming.parcel == nullptr && !is_closed(letter.tag)) {
    kept_.push_back({&peer, letter.tag, letter.bytes, letter.message, false});
    incoming.kept = &kept_.back();
    incoming.kept->data = std::make_unique_for_overwrite<char[]>(letter.bytes);
  }
  if (letter.length == letter.bytes) {
    return go_on(peer, incoming, letter);
  }
  peer.incoming.push_back(incoming);
  return go_on(peer, peer.incoming.back(), letter);
}

// Further data of a message. Returns false if it is more than was announced, or nothing.
bool Mail::go_on(Peer& peer, Incoming& incoming, const Letter& letter) {
  if (letter.length > incoming.bytes - incoming.arrived || (letter.length == 0 && incoming.bytes != 0)) {
    return false;
  }
  if (incoming.parcel != nullptr) {
    incoming.parcel->unpack(incoming.arrived, letter.data, letter.length);
  } else if (incoming.kept != nullptr && letter.length != 0) {
    std::memcpy(incoming.kept->data.get() + incoming.arrived, letter.data, letter.length);
  }
  incoming.arrived += letter.length;
  if (incoming.kept != nullptr) {
    incoming.kept->arrived = incoming.arrived;
  }
  if (incoming.arrived != incoming.bytes) {
    return true;
  }
  if (incoming.is_unasked && incoming.kept == nullptr) {
    peer.reader.settle(kept_bytes(incoming.bytes));
  }
  Parcel* const parcel = incoming.parcel;
  const int source = TagLayout::source_of(incoming.tag);
  const std::size_t bytes = incoming.bytes;
  std::erase_if(peer.incoming, [&](const Incoming& each) { return each.number == letter.message; });
  if (parcel != nullptr) {
    parcel->ended({}, source, bytes);
  }
  return true;
}

// The sender has withdrawn a message. Some of its data may have arrived.
void Mail::withdrawn(Peer& peer, std::uint32_t number) {
  const auto at = numbered(peer.incoming, number);
  if (at != peer.incoming.end()) {
    const Incoming incoming = *at;
    peer.incoming.erase(at);
    if (incoming.is_unasked) {
      peer.reader.settle(kept_bytes(incoming.bytes));
    }
    if (incoming.parcel != nullptr) {
      incoming.parcel->ended(withdrawn_status());
    }
  }
  kept_.remove_if([&](const Kept& each) { return each.peer == &peer && each.number == number; });
}

// --- both

Status Mail::progress(LoopToken& token) {
  token.check();
  for (Peer* const peer : watched_) {
    serve(*peer);
  }
  std::erase_if(watched_, [](Peer* peer) {
    peer->is_watched = peer->is_busy();
    return !peer->is_watched;
  });
  // A peer from which nothing is expected may still send. With a receive from any, all are looked at.
  for (std::size_t looks = from_any_ != 0 ? peers_.size() : std::min<std::size_t>(1, peers_.size()); looks != 0; --looks) {
    look_ = look_ + 1 < peers_.size() ? look_ + 1 : 0;
    if (Peer& peer = *peers_[look_]; !peer.is_watched && serve(peer) && peer.is_busy()) {
      watch(peer);
    }
  }
  return {};
}

// Reads and writes what is possible. Returns whether anything was.
bool Mail::serve(Peer& peer) {
  const bool got = read(peer);
  const bool sent = write(peer);
  if ((std::exchange(peer.rings, false) || sent) && peer.bell != nullptr) {
    peer.bell->ring();
  }
  return got || sent;
}

// Takes the message out of whatever it is in. The peer learns of it if it knows the message.
void Mail::cancel(LoopToken& token, Parcel& parcel) {
  token.check();
  const auto is_it = [&](const auto& each) { return each.parcel == &parcel; };
  if (const auto at = std::find_if(posted_.begin(), posted_.end(), is_it); at != posted_.end()) {
    take_out(at);
  }
  kept_.remove_if([&](const Kept& each) { return each.own == &parcel; });
  for (const auto& peer : peers_) {
    for (Incoming& incoming : peer->incoming) {
      if (incoming.parcel == &parcel) {
        incoming.parcel = nullptr;  // what still comes is dropped
        if (!incoming.is_unasked) {
          peer->answers.push_back({Kind::decline, incoming.number});
          watch(*peer);
        }
      }
    }
    const auto take_from = [&](auto& queue) {
      const auto at = std::find_if(queue.begin(), queue.end(), is_it);
      if (at == queue.end()) {
        return;
      }
      if (at->begun) {
        peer->answers.push_back({Kind::withdraw, at->number});
        watch(*peer);
      }
      queue.erase(at);
    };
    take_from(peer->to_announce);
    take_from(peer->offered);
    take_from(peer->accepted);
    serve(*peer);
  }
  parcel.ended(given_up_status());
}

// The peer is not believed any more: messages with it fail, now and later.
void Mail::fail(Peer& peer, const std::string& why) {
  peer.broken = why;
  std::vector<Parcel*> ended;
  const auto drop_all = [&](auto& queue) {
    for (const auto& each : queue) {
      if (each.parcel != nullptr) {
        ended.push_back(each.parcel);
      }
    }
    queue.clear();
  };
  drop_all(peer.to_announce);
  drop_all(peer.offered);
  drop_all(peer.accepted);
  drop_all(peer.incoming);
  peer.answers.clear();
  std::erase_if(posted_, [&](const Posted& each) {
    if (each.peer == &peer) {
      ended.push_back(each.parcel);
    }
    return each.peer == &peer;
  });
  peer.awaited = 0;
  kept_.remove_if([&](const Kept& each) { return each.peer == &peer; });
  for (Parcel* const parcel : ended) {
    parcel->ended(Status(StatusCode::transport, why));
  }
}

void Mail::drop_group(LoopToken& token, std::uint16_t group) {
  token.check();
  closed_.insert(group);
  kept_.remove_if([&](const Kept& kept) {
    if (TagLayout::group_of(kept.tag) != group || kept.own != nullptr) {  // the operation of `own` still lives
      return false;
    }
    if (kept.is_offer) {
      kept.peer->answers.push_back({Kind::decline, kept.number});
      watch(*kept.peer);
    } else if (kept.arrived == kept.bytes) {
      kept.peer->reader.settle(kept_bytes(kept.bytes));
    } else {
      for (Incoming& incoming : kept.peer->incoming) {
        incoming.kept = incoming.kept == &kept ? nullptr : incoming.kept;  // the rest is dropped
      }
    }
    return true;
  });
}

std::optional<std::string> Mail::take_note(LoopToken& token) {
  token.check();
  for (auto each = kept_.begin(); each != kept_.end(); ++each) {
    if (each->tag == TagLayout::note() && each->peer != nullptr && !each->is_offer && each->arrived == each->bytes) {
      std::string note(each->data.get(), std::min(each->bytes, TagLayout::kMaxNote));
      each->peer->reader.settle(kept_bytes(each->bytes));
      kept_.erase(each);
      return note;
    }
  }
  return std::nullopt;
}

}  // namespace torch_ucc::shm
