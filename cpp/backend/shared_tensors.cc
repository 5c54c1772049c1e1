#include "backend/shared_tensors.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/forked.h"
#include "base/status.h"
#include "base/thread_annotations.h"

namespace torch_ucc::shared_tensors {
namespace {

constexpr std::size_t kPage = 4096;

using SegmentPtr = std::shared_ptr<const Segment>;

// The segments of this process. Never destroyed, because tensors may end after it would be.
class Segments {
 public:
  SegmentPtr take(std::size_t bytes) {
    SegmentPtr segment = take_kept(bytes);
    if (segment == nullptr) {
      segment = std::make_shared<const Segment>(bytes);
    }
    const MutexLock lock(mutex_);
    used_.emplace(static_cast<const char*>(segment->memory.data()), segment);
    return segment;
  }

  void give_back(const void* data) {
    if (in_forked_child()) {
      return;  // the memory belongs to the parent; and at the fork a thread may have held the mutex
    }
    std::vector<SegmentPtr> dropped;  // their memory is unmapped without the lock
    const MutexLock lock(mutex_);
    const auto it = used_.find(static_cast<const char*>(data));
    SegmentPtr segment = std::move(it->second);
    used_.erase(it);
    if (segment->was_shown.load(std::memory_order_acquire) || segment->bytes > kKeptBytes) {
      dropped.push_back(std::move(segment));
      return;
    }
    kept_bytes_ += segment->bytes;
    kept_.push_back(std::move(segment));
    while (kept_.size() > kKeptSegments || kept_bytes_ > kKeptBytes) {
      kept_bytes_ -= kept_.front()->bytes;
      dropped.push_back(std::move(kept_.front()));
      kept_.pop_front();
    }
  }

  SegmentPtr at(const void* address) {
    const MutexLock lock(mutex_);
    auto it = used_.upper_bound(static_cast<const char*>(address));
    if (it == used_.begin()) {
      return nullptr;
    }
    --it;
    return address < it->first + it->second->bytes ? it->second : nullptr;
  }

 private:
  SegmentPtr take_kept(std::size_t bytes) {
    const MutexLock lock(mutex_);
    const auto it = std::find_if(kept_.begin(), kept_.end(), [&](const SegmentPtr& each) { return each->bytes == bytes; });
    if (it == kept_.end()) {
      return nullptr;
    }
    SegmentPtr segment = std::move(*it);
    kept_.erase(it);
    kept_bytes_ -= bytes;
    return segment;
  }

  Mutex mutex_;
  std::map<const char*, SegmentPtr> used_ TUCC_GUARDED_BY(mutex_);
  std::deque<SegmentPtr> kept_ TUCC_GUARDED_BY(mutex_);  // the oldest first
  std::size_t kept_bytes_ TUCC_GUARDED_BY(mutex_) = 0;
};

Segments& segments() {
  static auto* const all = new Segments();
  return *all;
}

}  // namespace

at::Tensor allocate(std::int64_t size, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) {
    throw StatusError(Status(StatusCode::unsupported,
                             "allocate_tensor of a ucc group makes tensors on the CPU, not on " + options.device().str()));
  }
  std::size_t bytes = 0;
  if (size < 0 || __builtin_mul_overflow(static_cast<std::size_t>(size), options.dtype().itemsize(), &bytes) ||
      bytes > SIZE_MAX / 2) {
    throw StatusError(Status(StatusCode::invalid, "allocate_tensor: a tensor cannot have " + std::to_string(size) + " elements"));
  }
  const std::size_t whole = (kOffset + bytes + kPage - 1) / kPage * kPage;
  const std::shared_ptr<void> data(segments().take(whole)->memory.data(), [](void* freed) { segments().give_back(freed); });
  return at::from_blob(
      static_cast<char*>(data.get()) + kOffset, {size}, [data](void*) {}, options);
}

std::shared_ptr<const Segment> segment_of(const at::Tensor& tensor) { return segments().at(tensor.storage().data()); }

}  // namespace torch_ucc::shared_tensors
