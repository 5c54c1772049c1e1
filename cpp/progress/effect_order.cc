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

// Whether an operation with effects `later` waits for the end of an earlier one with effects
// `earlier`, because it uses what the earlier one writes.
bool follows_writes(const Effects& later, const Effects& earlier) {
  return any_overlap(earlier.writes, later.writes) || any_overlap(earlier.writes, later.reads);
}

bool has_ended(const Op* op) { return op == nullptr || op->completion().done(); }

}  // namespace

bool EffectOrder::Before::over() const {
  const std::shared_ptr<const Op> one = op.lock();
  return has_ended(one.get()) || (until_detached && one->has_detached_inputs());
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
  // The new operation waits for the end of these, and for a copy only of the rest of `earlier`.
  std::vector<const Entry*> ends;
  const MutexLock lock(mutex_);
  forget_ended(on_device(effects));
  for (std::size_t left = entries_.size(); left-- != 0;) {  // the newest first
    const Entry& entry = entries_[left];
    // An entry is left out if one of `ends` cannot end before it. So of many operations on one
    // tensor, a new operation waits for the last only. Entries with `lasts` are never left out,
    // because their results arrive after their end.
    if (entry.lasts == nullptr && std::any_of(ends.begin(), ends.end(), [&](const Entry* later) {
          return later->lasts == nullptr && follows_writes(later->effects, entry.effects);
        })) {
      continue;
    }
    const bool writes = follows_writes(effects, entry.effects);
    const std::shared_ptr<Op> op = entry.op.lock();
    const bool reads = !has_ended(op.get()) && any_overlap(entry.effects.reads, effects.writes);
    if (writes || (reads && !op->detach_inputs())) {
      earlier.push_back({op});
      ends.push_back(&entry);
    } else if (reads && !op->has_detached_inputs()) {
      earlier.push_back({op, /*until_detached=*/true});
    }
  }
  std::reverse(earlier.begin(), earlier.end());
  return earlier;
}

EffectOrder::Earlier EffectOrder::collectives() {
  Earlier earlier;
  const MutexLock lock(mutex_);
  forget_ended(/*on_device=*/false);
  for (const Entry& entry : entries_) {
    if (entry.is_collective && !has_ended(entry.op.lock().get())) {
      earlier.push_back({entry.op});
    }
  }
  return earlier;
}

void EffectOrder::add(const std::shared_ptr<Op>& op, Effects effects, bool is_collective, Lasts lasts) {
  const MutexLock lock(mutex_);
  entries_.push_back({op, std::move(effects), is_collective, std::move(lasts)});
  size_.store(entries_.size(), std::memory_order_release);
}

void EffectOrder::forget_ended(bool on_device) {
  std::erase_if(entries_, [on_device](const Entry& entry) {
    return has_ended(entry.op.lock().get()) && (entry.lasts == nullptr || (on_device && !entry.lasts()));
  });
  size_.store(entries_.size(), std::memory_order_release);
}

}  // namespace torch_ucc
