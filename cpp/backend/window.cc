#include "backend/window.h"

#if TUCC_TORCH_HAS_RECONFIGURE

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "work/ended_work.h"
#include "work/errors.h"

namespace torch_ucc {
namespace {

using std::chrono::milliseconds;

constexpr int kNotices = 0;  // the tag of notices; that of data is 1 and more
constexpr std::uint64_t kTags = 1U << 30U;

// What a rank tells the others of its tensor.
struct Told {
  static constexpr std::size_t kMaxDims = 16;
  std::int64_t dtype = 0;
  std::int64_t dims = 0;
  std::array<std::int64_t, kMaxDims> sizes{};
  std::uint64_t segment_bytes = 0;  // 0: the memory cannot be mapped
  std::uint64_t offset = 0;         // in the segment
  std::array<char, 104> address{};
};

at::Tensor bytes_at(void* data, std::size_t bytes) {
  return at::from_blob(data, {static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte));
}

}  // namespace

// A signal that has not come yet, and the data that follow it.
class UccWindow::Arrival final : public c10d::Work {
 public:
  Arrival(c10::intrusive_ptr<UccWindow> window, int rank, milliseconds timeout)
      : Work(rank, c10d::OpType::UNKNOWN, "ucc:wait_signal"),
        window_(std::move(window)),
        rank_(rank),
        timeout_(timeout),
        notice_(at::empty({sizeof(Notice)}, at::kByte)),
        pending_(post(notice_, kNotices)) {}

  bool isCompleted() override {
    const MutexLock lock(mutex_);
    while (pending_ != nullptr && pending_->isCompleted()) {
      go_on();
    }
    return pending_ == nullptr;
  }
  bool isSuccess() const override {
    const MutexLock lock(mutex_);
    return pending_ == nullptr;
  }
  bool wait(milliseconds timeout) override {
    for (;;) {
      WorkPtr next;
      {
        const MutexLock lock(mutex_);
        next = pending_;
      }
      if (next == nullptr) {
        return true;
      }
      next->wait(timeout);
      const MutexLock lock(mutex_);
      if (pending_ == next) {
        go_on();
      }
    }
  }
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return {}; }
  int sourceRank() const override { return rank_; }

 private:
  WorkPtr post(const at::Tensor& into, int tag) const {
    std::vector<at::Tensor> tensors{into};
    const MutexLock lock(window_->posting_);
    window_->group_->setTimeout(timeout_);
    return window_->group_->recv(tensors, rank_, tag);
  }

  // What is pending has ended: takes its error, or what follows it.
  void go_on() TUCC_REQUIRES(mutex_) {
    const WorkPtr ended = std::exchange(pending_, nullptr);
    ended->wait(kNoTimeout);
    if (has_notice_) {
      return;
    }
    has_notice_ = true;
    Notice notice;
    std::memcpy(&notice, notice_.const_data_ptr(), sizeof(notice));
    if (notice.bytes != 0) {
      pending_ = post(window_->landing(notice), static_cast<int>(1 + notice.number % kTags));
    }
  }

  const c10::intrusive_ptr<UccWindow> window_;
  const int rank_;
  const milliseconds timeout_;
  const at::Tensor notice_;
  mutable Mutex mutex_;
  WorkPtr pending_ TUCC_GUARDED_BY(mutex_);  // null: all is there
  bool has_notice_ TUCC_GUARDED_BY(mutex_) = false;
};

UccWindow::UccWindow(c10::intrusive_ptr<UccBackend> group)
    : group_(std::move(group)), timeout_(group_->getBackendOptions()->timeout) {}

UccWindow::~UccWindow() { group_->leave(false); }

std::string UccWindow::describe() const {
  return "group '" + group_->name() + "' on rank " + std::to_string(group_->getRank()) + " of " +
         std::to_string(group_->getSize());
}

void UccWindow::refuse(const std::string& what, const std::string& why) const {
  throw_for_user(Status(StatusCode::invalid, what + " of " + describe() + ": " + why));
}

void UccWindow::tensor_register(const at::Tensor& tensor, bool /*owning*/) {
  const char* const what = "tensor_register";
  {
    const MutexLock lock(mutex_);
    if (tensor_.defined()) {
      refuse(what, "double registration: a tensor is registered already; call tensor_deregister() first");
    }
  }
  if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != at::kStrided || !tensor.is_contiguous() ||
      tensor.is_conj() || tensor.is_neg()) {
    refuse(what, "the tensor must be a contiguous one on the CPU");
  }
  if (tensor.dim() > static_cast<std::int64_t>(Told::kMaxDims)) {
    refuse(what, "the tensor has more than " + std::to_string(Told::kMaxDims) + " dimensions");
  }
  Told mine;
  mine.dtype = static_cast<std::int64_t>(tensor.scalar_type());
  mine.dims = tensor.dim();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), mine.sizes.begin());
  if (const auto segment = shared_tensors::segment_of(tensor)) {
    const std::string address = segment->memory.address();
    if (!address.empty() && address.size() < mine.address.size()) {
      mine.segment_bytes = segment->bytes;
      mine.offset = static_cast<std::uint64_t>(static_cast<const char*>(tensor.const_data_ptr()) -
                                               static_cast<const char*>(segment->memory.data()));
      std::copy(address.begin(), address.end(), mine.address.begin());
    }
  }
  std::vector<Told> told(static_cast<std::size_t>(group_->getSize()));
  at::Tensor input = bytes_at(&mine, sizeof(mine));
  at::Tensor output = bytes_at(told.data(), told.size() * sizeof(Told));
  if (const WorkPtr work = group_->_allgather_base(output, input, {})) {
    work->wait();
  }
  std::vector<Target> targets;
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    const Told& each = told[rank];
    Target& target = targets.emplace_back();
    target.dtype = static_cast<at::ScalarType>(each.dtype);
    target.sizes.assign(each.sizes.begin(), each.sizes.begin() + std::clamp<std::int64_t>(each.dims, 0, Told::kMaxDims));
    target.elements = c10::multiply_integers(target.sizes);
    if (static_cast<int>(rank) == group_->getRank()) {
      target.data = tensor.data_ptr();
    } else if (each.segment_bytes != 0) {
      map(target, static_cast<std::int64_t>(rank), std::string(each.address.data()), each.segment_bytes, each.offset);
    }
  }
  // Nobody puts before all have mapped, or gives its tensor up.
  if (const WorkPtr work = group_->barrier({})) {
    work->wait();
  }
  const MutexLock lock(mutex_);
  tensor_ = tensor;
  targets_ = std::move(targets);
}

void UccWindow::map(Target& target, std::int64_t rank, const std::string& address, std::size_t bytes, std::size_t offset) {
  const std::size_t needed = static_cast<std::size_t>(target.elements) * c10::elementSize(target.dtype);
  if (offset > bytes || needed > bytes - offset) {
    refuse("tensor_register", "rank " + std::to_string(rank) + " told a tensor that is not within its memory");
  }
  if (auto memory = SharedMemory::of_peer(address, bytes, bytes, SharedMemory::Access::write)) {
    target.memory = std::make_shared<SharedMemory>(std::move(*memory));
    target.data = static_cast<char*>(target.memory->data()) + offset;
  }
}

void UccWindow::tensor_deregister() {
  {
    const MutexLock lock(mutex_);
    if (!tensor_.defined()) {
      refuse("tensor_deregister", "no tensor is registered");
    }
  }
  if (const WorkPtr work = group_->barrier({})) {
    work->wait();
  }
  const MutexLock lock(mutex_);
  tensor_ = at::Tensor();
  targets_.clear();
}

const UccWindow::Target& UccWindow::target(const std::string& what, std::int64_t rank) const {
  if (!tensor_.defined()) {
    refuse(what, "a tensor is not registered: call tensor_register() first");
  }
  if (rank < 0 || rank >= group_->getSize()) {
    refuse(what, "rank " + std::to_string(rank) + " is not a rank of the group");
  }
  return targets_[static_cast<std::size_t>(rank)];
}

UccWindow::WorkPtr UccWindow::put(const at::Tensor& tensor, std::int64_t rank, std::int64_t offset, bool async_op,
                                  const c10d::PutOptions& opts) {
  const std::string what = "put to rank " + std::to_string(rank);
  Target to;
  {
    const MutexLock lock(mutex_);
    to = target(what, rank);
  }
  if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != at::kStrided) {
    refuse(what, "the tensor must be a dense one on the CPU");
  }
  if (tensor.scalar_type() != to.dtype) {
    refuse(what, std::string("the type of the tensor, ") + c10::toString(tensor.scalar_type()) +
                     ", does not match that of the window there, " + c10::toString(to.dtype));
  }
  if (offset < 0) {
    refuse(what, "the offset must be nonnegative, not " + std::to_string(offset));
  }
  if (offset > to.elements || tensor.numel() > to.elements - offset) {
    refuse(what, std::to_string(tensor.numel()) + " elements from " + std::to_string(offset) +
                     " on exceeds the window size there, " + std::to_string(to.elements) + " elements");
  }
  const std::size_t item = tensor.element_size();
  Notice notice;
  if (to.data != nullptr) {
    at::Tensor there = at::from_blob(static_cast<char*>(to.data) + static_cast<std::size_t>(offset) * item, tensor.sizes(),
                                     at::TensorOptions(to.dtype));
    there.copy_(tensor);
    notify(static_cast<int>(rank), notice, opts.timeout);
  } else {
    const at::Tensor copy = tensor.contiguous().resolve_conj().resolve_neg();
    notice.offset = static_cast<std::uint64_t>(offset) * item;
    notice.bytes = copy.nbytes();
    notice.number = puts_.fetch_add(1);
    notify(static_cast<int>(rank), notice, opts.timeout);
    if (notice.bytes != 0) {
      send_bytes(static_cast<int>(rank), static_cast<int>(1 + notice.number % kTags), copy.const_data_ptr(), notice.bytes,
                 opts.timeout);
    }
  }
  return async_op ? ended_work() : nullptr;
}

void UccWindow::notify(int rank, const Notice& notice, milliseconds timeout) {
  send_bytes(rank, kNotices, &notice, sizeof(notice), timeout);
}

// The data are copied, so the caller need not wait.
void UccWindow::send_bytes(int rank, int tag, const void* data, std::size_t bytes, milliseconds timeout) {
  std::vector<at::Tensor> tensors{at::empty({static_cast<std::int64_t>(bytes)}, at::kByte)};
  std::memcpy(tensors.front().data_ptr(), data, bytes);
  const MutexLock lock(posting_);
  group_->setTimeout(timeout.count() > 0 ? timeout : timeout_);
  group_->send(tensors, rank, tag);
}

at::Tensor UccWindow::landing(const Notice& notice) const {
  const MutexLock lock(mutex_);
  const std::size_t bytes = tensor_.defined() ? tensor_.nbytes() : 0;
  if (notice.offset > bytes || notice.bytes > bytes - notice.offset) {
    refuse("wait_signal", "a put of " + std::to_string(notice.bytes) + " bytes to offset " + std::to_string(notice.offset) +
                              " does not fit into the " + std::to_string(bytes) + " bytes that are registered");
  }
  return bytes_at(static_cast<char*>(tensor_.data_ptr()) + notice.offset, notice.bytes);
}

at::Tensor UccWindow::map_remote_tensor(std::int64_t rank) {
  const std::string what = "map_remote_tensor of rank " + std::to_string(rank);
  const MutexLock lock(mutex_);
  const Target& there = target(what, rank);
  if (rank == group_->getRank()) {
    return tensor_;
  }
  if (there.data == nullptr) {
    throw_for_user(Status(StatusCode::unsupported,
                          what + " of " + describe() +
                              ": its tensor cannot be mapped. It is on another host, or allocate_tensor() of the group did not "
                              "make it. put() works all the same"));
  }
  return at::from_blob(
      there.data, there.sizes, [memory = there.memory](void*) {}, at::TensorOptions(there.dtype));
}

UccWindow::WorkPtr UccWindow::signal(std::int64_t rank, bool async_op, const c10d::SignalOptions& opts) {
  {
    const MutexLock lock(mutex_);
    target("signal to rank " + std::to_string(rank), rank);
  }
  notify(static_cast<int>(rank), Notice(), opts.timeout);
  return async_op ? ended_work() : nullptr;
}

UccWindow::WorkPtr UccWindow::wait_signal(std::int64_t rank, bool async_op, const c10d::WaitSignalOptions& opts) {
  {
    const MutexLock lock(mutex_);
    target("wait_signal from rank " + std::to_string(rank), rank);
  }
  auto arrival = c10::make_intrusive<Arrival>(c10::intrusive_ptr<UccWindow>::reclaim_copy(this), static_cast<int>(rank),
                                              opts.timeout.count() > 0 ? opts.timeout : timeout_);
  if (async_op) {
    return arrival;
  }
  arrival->wait(kNoTimeout);
  return nullptr;
}

c10d::WindowAttr UccWindow::get_attr(std::int64_t rank) {
  const MutexLock lock(mutex_);
  const bool unified = target("get_attr of rank " + std::to_string(rank), rank).data != nullptr;
  return {unified ? c10d::WindowAccessType::UNIFIED : c10d::WindowAccessType::SEPARATE};
}

}  // namespace torch_ucc

#endif  // TUCC_TORCH_HAS_RECONFIGURE
