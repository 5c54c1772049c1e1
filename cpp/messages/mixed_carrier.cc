#include "messages/mixed_carrier.h"

#include <algorithm>

#include "messages/tag_layout.h"

namespace torch_ucc {

MixedCarrier::MixedCarrier(Carrier& by_near, Carrier& by_far, const std::vector<std::uint64_t>& near)
    : near_(by_near), far_(by_far) {
  for (const std::uint64_t position : near) {
    is_near_.resize(std::max<std::size_t>(is_near_.size(), position + 1));
    is_near_[position] = true;
  }
}

void MixedCarrier::send(LoopToken& token, std::uint64_t position, std::uint64_t tag, Parcel& parcel) {
  carrier_to(position).send(token, position, tag, parcel);
}

void MixedCarrier::receive(LoopToken& token, std::uint64_t position, std::uint64_t tag, Parcel& parcel) {
  if (const auto queue = queues_.find(tag & TagLayout::kAnySource); queue != queues_.end()) {
    parcel.begin(token, *this);
    queue->second.push_back({&parcel, tag, position});
    return;
  }
  carrier_to(position).receive(token, position, tag, parcel);
}

void MixedCarrier::receive_from_any(LoopToken& token, std::uint64_t tag, Parcel& parcel) {
  parcel.begin(token, *this);
  const std::uint64_t key = tag & TagLayout::kAnySource;
  std::deque<Waiting>& queue = queues_[key];
  queue.push_back({&parcel, tag, 0});
  settle(token, queue);
  if (queue.empty()) {
    queues_.erase(key);
  }
}

bool MixedCarrier::receive_arrived(LoopToken& token, std::uint64_t tag, Parcel& parcel) {
  return near_.receive_arrived(token, tag, parcel) || far_.receive_arrived(token, tag, parcel);
}

// Serves the receives at the front: one from any rank if a message has arrived for it, and those
// behind it if it was served.
void MixedCarrier::settle(LoopToken& token, std::deque<Waiting>& queue) {
  while (!queue.empty()) {
    const Waiting first = queue.front();
    if (!first.parcel->is_from_any()) {
      carrier_to(first.position).receive(token, first.position, first.tag, *first.parcel);
    } else if (!receive_arrived(token, first.tag, *first.parcel)) {
      return;
    }
    queue.pop_front();
  }
}

Status MixedCarrier::progress(LoopToken& token) {
  if (queues_.empty()) {
    return {};
  }
  Status status = near_.progress(token);
  if (Status far = far_.progress(token); status.ok()) {
    status = std::move(far);
  }
  for (auto each = queues_.begin(); each != queues_.end();) {
    settle(token, each->second);
    each = each->second.empty() ? queues_.erase(each) : std::next(each);
  }
  return status;
}

// Only receives that still wait here; the other messages belong to one of the two carriers.
void MixedCarrier::cancel(LoopToken& token, Parcel& parcel) {
  for (auto each = queues_.begin(); each != queues_.end(); ++each) {
    std::deque<Waiting>& queue = each->second;
    if (std::erase_if(queue, [&](const Waiting& waiting) { return waiting.parcel == &parcel; }) != 0) {
      settle(token, queue);
      if (queue.empty()) {
        queues_.erase(each);
      }
      break;
    }
  }
  parcel.ended(given_up_status());
}

}  // namespace torch_ucc
