// What the messages of one group use: the carrier, the members with their bells, and the tags.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "messages/carrier.h"
#include "messages/tag_layout.h"
#include "progress/bell.h"
#include "progress/failure_domain.h"
#include "progress/loop_token.h"

namespace torch_ucc {

struct ChannelMember {
  std::uint64_t position = 0;  // in the context
  const Bell* bell = nullptr;  // null if this process cannot ring the member; outlives the channel
};

class Channel {
 public:
  // `group` is 1..TagLayout::kMaxGroup and differs from that of any other channel ever made on the
  // carrier, or it is TagLayout::kNotes. `members` are in the order of their ranks. The operations
  // of the channel fail together with `domain`. The carrier must outlive the channel.
  Channel(Carrier& carrier, std::uint16_t group, std::vector<ChannelMember> members, int rank,
          std::shared_ptr<FailureDomain> domain)
      : carrier_(carrier),
        group_(group),
        members_(std::move(members)),
        bells_(bells_of(members_)),
        rank_(rank),
        domain_(std::move(domain)) {}

  Carrier& carrier() const { return carrier_; }
  // Sends or receives what the message of the parcel says.
  void post(LoopToken& token, Space space, std::uint32_t tag, Parcel& parcel) const {
    const int peer = parcel.message().peer;
    if (!parcel.receives()) {
      carrier_.send(token, members_[index(peer)].position, tag_from(rank_, space, tag), parcel);
    } else if (parcel.is_from_any()) {
      carrier_.receive_from_any(token, tag_from(0, space, tag), parcel);
    } else {
      carrier_.receive(token, members_[index(peer)].position, tag_from(peer, space, tag), parcel);
    }
  }
  // Whether a message that was posted can be taken back at once. Any thread.
  bool cancels_at_once(const Message& message) const {
    return message.peer != Message::kAnyRank && carrier_.cancels_at_once(members_[index(message.peer)].position);
  }
  std::uint64_t tag_from(int source, Space space, std::uint32_t tag) const { return TagLayout::pack(space, group_, source, tag); }

  void ring(int rank) const {
    if (const Bell* bell = members_[index(rank)].bell) {
      bell->ring();
    }
  }
  void ring_all() const { Bell::ring(bells_); }
  // Whether that rank rings the bell of this process when it posts. True for the own rank, which
  // needs no bell.
  bool rings(int rank) const { return rank == rank_ || members_[index(rank)].bell != nullptr; }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  FailureDomain& domain() const { return *domain_; }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  static std::vector<const Bell*> bells_of(const std::vector<ChannelMember>& members) {
    std::vector<const Bell*> bells;
    for (const ChannelMember& member : members) {
      if (member.bell != nullptr) {
        bells.push_back(member.bell);
      }
    }
    return bells;
  }

  Carrier& carrier_;
  const std::uint16_t group_;
  const std::vector<ChannelMember> members_;
  const std::vector<const Bell*> bells_;  // of the members that have a bell
  const int rank_;
  const std::shared_ptr<FailureDomain> domain_;
};

}  // namespace torch_ucc
