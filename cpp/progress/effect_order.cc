#include "progress/effect_order.h"

#include <algorithm>
#include <utility>

namespace torch_ucc {
namespace {

bool any_overlap(const std::vector<Region>& some, const std::vector<Region>& others) {
  return std::any_of(some.begin(), some.end(), [&](const Region& each) {
    return std::any_of(others.begin(), others.end(), [&](const Region& other) { return overlap(each, other); });
  });
}

bool on_device(const Effects& effects) {
  const auto is_devices = [](const Region& region) { return region.space != 0; };
  return std::any_of(effects.reads.begin(), effects.reads.end(), is_devices) ||
         std::any_of(effects.writes.begin(), effects.writes.end(), is_devices);
}

}  // namespace

bool EffectOrder::Before::over() const {
  const std::shared_ptr<const Op> one = op.lock();
  return one == nullptr || one->completion().done() || (until_detached && one->has_detached_inputs());
}

void Effects::add(const Effects& others) {
  reads.insert(reads.end(), others.reads.begin(), others.reads.end());
  writes.insert(writes.end(), others.writes.begin(), others.writes.end());
}

bool conflict(const Effects& a, const Effects& b) {
  return any_overlap(a.writes, b.writes) || any_overlap(a.writes, b.reads) || any_overlap(a.reads, b.writes);
}

EffectOrder::Earlier EffectOrder::before(const Effects& effects) {
  Earlier earlier;
  const MutexLock lock(mutex_);
  forget_ended(on_device(effects));
  for (const Entry& entry : entries_) {
    const bool writes = any_overlap(entry.effects.writes, effects.writes) || any_overlap(entry.effects.writes, effects.reads);
    const std::shared_ptr<Op> op = entry.op.lock();
    const bool reads = !entry.has_ended() && any_overlap(entry.effects.reads, effects.writes);
    if (writes || (reads && !op->detach_inputs())) {
      earlier.push_back({op});
    } else if (reads && !op->has_detached_inputs()) {
      earlier.push_back({op, /*until_detached=*/true});
    }
  }
  return earlier;
}

EffectOrder::Earlier EffectOrder::collectives() {
  Earlier earlier;
  const MutexLock lock(mutex_);
  forget_ended(/*on_device=*/false);
  for (const Entry& entry : entries_) {
    if (entry.is_collective && !entry.has_ended()) {
      earlier.push_back({entry.op});
    }
  }
  return earlier;
}

void EffectOrder::add(const std::shared_ptr<Op>& op, Effects effects, bool is_collective, Lasts lasts) {
  const MutexLock lock(mutex_);
  forget_ended(on_device(effects));
  entries_.push_back({op, std::move(effects), is_collective, std::move(lasts)});
  size_.store(entries_.size(), std::memory_order_release);
}

void EffectOrder::forget_ended(bool on_device) {
  std::erase_if(entries_, [on_device](const Entry& entry) {
    return entry.has_ended() && (entry.lasts == nullptr || (on_device && !entry.lasts()));
  });
  size_.store(entries_.size(), std::memory_order_release);
}

}  // namespace torch_ucc
