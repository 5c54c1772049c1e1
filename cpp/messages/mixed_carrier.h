// Messages of groups that span hosts: two carriers as one.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "messages/carrier.h"

namespace torch_ucc {

// Messages to and from near processes go by one carrier, and those to and from far ones by another.
// A receive from any rank may get a message of either, so no carrier can wait for it: it takes the
// first message that has arrived. Receives with the same tag that are posted after it wait until it
// has one, because otherwise they could get the message that belongs to it.
class MixedCarrier final : public Carrier {
 public:
  // `near` are the positions of near processes. Both carriers must outlive this object.
  MixedCarrier(Carrier& by_near, Carrier& by_far, const std::vector<std::uint64_t>& near);

  void send(LoopToken& token, std::uint64_t position, std::uint64_t tag, Parcel& parcel) override;
  void receive(LoopToken& token, std::uint64_t position, std::uint64_t tag, Parcel& parcel) override;
  void receive_from_any(LoopToken& token, std::uint64_t tag, Parcel& parcel) override;
  bool receive_arrived(LoopToken& token, std::uint64_t tag, Parcel& parcel) override;
  void cancel(LoopToken& token, Parcel& parcel) override;
  bool cancels_at_once(std::uint64_t position) const override { return carrier_to(position).cancels_at_once(position); }

  // Also drives both carriers while a receive from any rank waits.
  Status progress(LoopToken& token) override;

 private:
  struct Waiting {
    Parcel* parcel;
    std::uint64_t tag;
    std::uint64_t position;  // only if the receive is from one rank
  };

  Carrier& carrier_to(std::uint64_t position) const { return position < is_near_.size() && is_near_[position] ? near_ : far_; }
  void settle(LoopToken& token, std::deque<Waiting>& queue);

  Carrier& near_;
  Carrier& far_;
  std::vector<bool> is_near_;                            // by position
  std::map<std::uint64_t, std::deque<Waiting>> queues_;  // by tag without source; each begins with one from any
};

}  // namespace torch_ucc
