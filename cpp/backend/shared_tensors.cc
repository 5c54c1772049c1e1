#include "backend/shared_tensors.h"

#include <map>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/thread_annotations.h"

namespace torch_ucc::shared_tensors {
namespace {

constexpr std::size_t kPage = 4096;

// The segments of this process. Never destroyed, because tensors may end after it would be.
class Segments {
 public:
  std::shared_ptr<const Segment> take(std::size_t bytes) {
    std::shared_ptr<const Segment> segment;
    {
      const MutexLock lock(mutex_);
      if (const auto it = free_.find(bytes); it != free_.end()) {
        segment = std::move(it->second);
        free_.erase(it);
        kept_ -= bytes;
      }
    }
    if (segment == nullptr) {
      segment = std::make_shared<const Segment>(bytes);
    }
    const MutexLock lock(mutex_);
    used_.emplace(static_cast<const char*>(segment->memory.data()), segment);
    return segment;
  }

  void give_back(const void* data) {
    std::shared_ptr<const Segment> dropped;  // its memory is unmapped without the lock
    const MutexLock lock(mutex_);
    const auto it = used_.find(static_cast<const char*>(data));
    dropped = std::move(it->second);
    used_.erase(it);
    if (kept_ + dropped->bytes <= kKept) {
      kept_ += dropped->bytes;
      const std::size_t bytes = dropped->bytes;
      free_.emplace(bytes, std::move(dropped));
    }
  }

  std::shared_ptr<const Segment> at(const void* address) {
    const MutexLock lock(mutex_);
    auto it = used_.upper_bound(static_cast<const char*>(address));
    if (it == used_.begin()) {
      return nullptr;
    }
    --it;
    return address < it->first + it->second->bytes ? it->second : nullptr;
  }

 private:
  Mutex mutex_;
  std::map<const char*, std::shared_ptr<const Segment>> used_ TUCC_GUARDED_BY(mutex_);
  std::multimap<std::size_t, std::shared_ptr<const Segment>> free_ TUCC_GUARDED_BY(mutex_);
  std::size_t kept_ TUCC_GUARDED_BY(mutex_) = 0;
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
  if (size < 0) {
    throw StatusError(Status(StatusCode::invalid, "allocate_tensor: the size is " + std::to_string(size)));
  }
  const std::size_t bytes = static_cast<std::size_t>(size) * options.dtype().itemsize();
  const std::size_t whole = (kOffset + bytes + kPage - 1) / kPage * kPage;
  const std::shared_ptr<const Segment> segment = segments().take(whole);
  void* const data = segment->memory.data();
  return at::from_blob(
      static_cast<char*>(data) + kOffset, {size}, [data](void*) { segments().give_back(data); }, options);
}

std::shared_ptr<const Segment> segment_of(const at::Tensor& tensor) { return segments().at(tensor.storage().data()); }

}  // namespace torch_ucc::shared_tensors
