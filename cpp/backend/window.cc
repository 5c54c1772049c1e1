#include "backend/window.h"

#if TUCC_TORCH_HAS_RECONFIGURE

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <utility>

#include "base/interrupt.h"
#include "work/ended_work.h"
#include "work/errors.h"

namespace torch_ucc {
namespace {

using std::chrono::milliseconds;

constexpr int kNotices = 0;  // the tag of notices; that of data is 1 and more
constexpr std::uint64_t kTags = 1U << 30U;

// What a rank shows the others of its tensor. Another process wrote it: nothing in it is trusted.
struct Told {
  static constexpr std::size_t kMaxDims = 16;
  std::int64_t dtype = 0;
  std::int64_t dims = 0;
  std::array<std::int64_t, kMaxDims> sizes{};
  std::uint64_t segment_bytes = 0;  // 0: the memory cannot be mapped
  std::uint64_t offset = 0;         // in the segment
  std::array<char, 104> address{};
};

// Whether a signal handler has raised the error.
bool asks_for_interrupt(const std::exception& error) {
  const IsInterrupt asks = is_interrupt.load(std::memory_order_acquire);
  return asks != nullptr && asks(error);
}

at::Tensor bytes(std::size_t size) { return at::empty({static_cast<std::int64_t>(size)}, at::kByte); }

// Returns how many bytes the described tensor has; nothing if there can be no such tensor.
std::optional<std::size_t> bytes_of(const Told& told) {
  if (told.dtype < 0 || told.dtype >= static_cast<std::int64_t>(at::ScalarType::NumOptions) || told.dims < 0 ||
      told.dims > static_cast<std::int64_t>(Told::kMaxDims) ||
      told.dtype == static_cast<std::int64_t>(at::ScalarType::Undefined)) {
    return std::nullopt;
  }
  std::size_t whole = c10::elementSize(static_cast<at::ScalarType>(told.dtype));
  bool has_none = false;
  for (std::int64_t i = 0; i < told.dims; ++i) {
    const std::int64_t size = told.sizes[static_cast<std::size_t>(i)];
    has_none = has_none || size == 0;
    if (size < 0 || __builtin_mul_overflow(whole, static_cast<std::size_t>(std::max<std::int64_t>(size, 1)), &whole)) {
      return std::nullopt;
    }
  }
  return has_none ? 0 : whole;
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
        notice_(bytes(sizeof(Notice))),
        pending_(post(notice_, kNotices)) {}

  bool isCompleted() override {
    for (;;) {
      WorkPtr ended;
      {
        const MutexLock lock(mutex_);
        if (is_over_) {
          return true;
        }
        if (pending_ == nullptr || !pending_->isCompleted()) {
          return false;
        }
        ended = std::exchange(pending_, nullptr);
      }
      go_on(ended);
    }
  }
  bool isSuccess() const override {
    const MutexLock lock(mutex_);
    return is_over_ && error_ == nullptr;
  }
  std::exception_ptr exception() const override {
    const MutexLock lock(mutex_);
    return error_;
  }
  bool wait(milliseconds timeout) override {
    for (;;) {
      WorkPtr next;
      {
        const MutexLock lock(mutex_);
        if (is_over_) {
          if (error_ != nullptr) {
            std::rethrow_exception(error_);
          }
          return true;
        }
        next = pending_;
      }
      if (next == nullptr) {
        ::sched_yield();  // another thread posts what follows
        continue;
      }
      try {
        next->wait(timeout);
      } catch (const std::exception& error) {
        if (!next->isCompleted() || asks_for_interrupt(error)) {
          throw;  // only this wait has ended
        }
      }
      {
        const MutexLock lock(mutex_);
        if (pending_ != next) {
          continue;
        }
        pending_ = nullptr;
      }
      go_on(next);
    }
  }
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override { return {}; }
  int sourceRank() const override { return rank_; }

 private:
  WorkPtr post(at::Tensor into, int tag) const {
    std::vector<at::Tensor> tensors{std::move(into)};
    return window_->group_->recv(tensors, rank_, tag, timeout_);
  }

  // Called without the mutex by the one thread that has taken `ended` from `pending_`: posting may
  // take the GIL.
  void go_on(const WorkPtr& ended) {
    WorkPtr next;
    std::exception_ptr error;
    try {
      ended->wait(kNoTimeout);
      next = following();
    } catch (const std::exception&) {
      error = std::current_exception();
    }
    const MutexLock lock(mutex_);
    pending_ = std::move(next);
    error_ = error;
    is_over_ = pending_ == nullptr;
  }

  // Posts what is received next; null: nothing. A notice of a tensor that was deregistered does not
  // count, and its data are dropped.
  WorkPtr following() {
    if (receives_data_) {
      receives_data_ = false;
      return is_stale_ ? post(notice_, kNotices) : nullptr;
    }
    Notice notice;
    std::memcpy(&notice, notice_.const_data_ptr(), sizeof(notice));
    is_stale_ = !window_->is_present(notice);
    if (notice.bytes == 0) {
      return is_stale_ ? post(notice_, kNotices) : nullptr;
    }
    receives_data_ = true;
    const auto receive = [&](at::Tensor into) { return post(std::move(into), static_cast<int>(1 + notice.number % kTags)); };
    WorkPtr landing = window_->land(notice, receive);
    if (landing == nullptr) {
      is_stale_ = true;
      landing = receive(bytes(notice.bytes));
    }
    return landing;
  }

  const c10::intrusive_ptr<UccWindow> window_;
  const int rank_;
  const milliseconds timeout_;
  const at::Tensor notice_;
  // Used by the thread that goes on
  bool receives_data_ = false;
  bool is_stale_ = false;

  mutable Mutex mutex_;
  WorkPtr pending_ TUCC_GUARDED_BY(mutex_);  // null: over, or a thread goes on
  bool is_over_ TUCC_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ TUCC_GUARDED_BY(mutex_);
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
  if (const auto segment = tensor.numel() == 0 ? nullptr : shared_tensors::segment_of(tensor)) {
    const std::string address = segment->memory.address();
    if (!address.empty() && address.size() < mine.address.size()) {
      segment->was_shown.store(true, std::memory_order_release);
      mine.segment_bytes = segment->bytes;
      mine.offset = static_cast<std::uint64_t>(static_cast<const char*>(tensor.const_data_ptr()) -
                                               static_cast<const char*>(segment->memory.data()));
      std::copy(address.begin(), address.end(), mine.address.begin());
    }
  }
  finish_deregistering();
  // Tensors of their own: an interrupted operation goes on with them.
  const auto size = static_cast<std::size_t>(group_->getSize());
  at::Tensor input = bytes(sizeof(Told));
  at::Tensor output = bytes(size * sizeof(Told));
  std::memcpy(input.data_ptr(), &mine, sizeof(mine));
  c10d::AllgatherOptions opts;
  opts.asyncOp = false;
  if (const WorkPtr work = group_->_allgather_base(output, input, opts)) {
    work->wait();
  }
  std::vector<Target> targets;
  for (std::size_t rank = 0; rank < size; ++rank) {
    Told each;
    std::memcpy(&each, static_cast<const char*>(output.const_data_ptr()) + rank * sizeof(each), sizeof(each));
    const std::optional<std::size_t> needed = bytes_of(each);
    each.address.back() = 0;
    const bool fits =
        needed && (each.segment_bytes == 0 || (each.offset <= each.segment_bytes && *needed <= each.segment_bytes - each.offset));
    if (!fits) {
      refuse(what, "rank " + std::to_string(rank) + " sent an invalid description of its tensor");
    }
    Target& target = targets.emplace_back();
    target.dtype = static_cast<at::ScalarType>(each.dtype);
    target.sizes.assign(each.sizes.begin(), each.sizes.begin() + each.dims);
    target.elements = static_cast<std::int64_t>(*needed / c10::elementSize(target.dtype));
    if (static_cast<int>(rank) == group_->getRank()) {
      target.data = tensor.data_ptr();
    } else if (each.segment_bytes != 0) {
      if (auto memory =
              SharedMemory::of_peer(each.address.data(), each.segment_bytes, each.segment_bytes, SharedMemory::Access::write)) {
        target.memory = std::make_shared<SharedMemory>(std::move(*memory));
        target.data = static_cast<char*>(target.memory->data()) + each.offset;
      }
    }
  }
  {
    const MutexLock lock(mutex_);
    tensor_ = tensor;
    targets_ = std::move(targets);
    ++registration_;
  }
  meet();  // so that every rank has a tensor when the first put arrives, and stays until all have mapped it
}

void UccWindow::meet() {
  c10d::BarrierOptions opts;
  opts.asyncOp = false;
  if (const WorkPtr work = group_->barrier(opts)) {
    work->wait();
  }
}

void UccWindow::tensor_deregister() {
  bool was_interrupted = false;
  {
    const MutexLock lock(mutex_);
    was_interrupted = is_deregistering_;
    if (!tensor_.defined() && !was_interrupted) {
      refuse("tensor_deregister", "no tensor is registered");
    }
  }
  if (was_interrupted) {
    finish_deregistering();
    return;
  }
  meet();
  at::Tensor dropped;  // after the locks: the end of a tensor may take the GIL
  {
    const MutexLock lock(mutex_);
    dropped = std::exchange(tensor_, at::Tensor());
    targets_.clear();
    is_deregistering_ = true;
  }
  finish_deregistering();
}

// Waits for the puts that this rank is receiving. Then waits for the other ranks: a rank that has sent a put must not
// leave before its data have arrived. If a signal interrupts this function, the next tensor_register() or
// tensor_deregister() calls it again.
void UccWindow::finish_deregistering() {
  wait_for_landings();
  {
    const MutexLock lock(mutex_);
    if (!std::exchange(is_deregistering_, false)) {
      return;
    }
  }
  meet();  // goes on by itself if a signal ends it
}

void UccWindow::wait_for_landings() {
  std::vector<WorkPtr> landings = take_landings();
  while (!landings.empty()) {
    try {
      landings.back()->wait(kNoTimeout);
    } catch (const std::exception& error) {
      if (!landings.back()->isCompleted() || asks_for_interrupt(error)) {
        const MutexLock lock(mutex_);
        landings_.insert(landings_.end(), landings.begin(), landings.end());
        throw;
      }
    }
    landings.pop_back();
  }
}

std::vector<UccWindow::WorkPtr> UccWindow::take_landings() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (posting_ == 0) {
        return std::exchange(landings_, {});
      }
    }
    ::sched_yield();
  }
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
  Notice notice;
  {
    const MutexLock lock(mutex_);
    to = target(what, rank);
    notice.registration = registration_;
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
  group_->require_usable([&] { return what + " of " + describe(); });  // before anything is stored
  const std::size_t item = tensor.element_size();
  if (to.data != nullptr) {
    at::from_blob(static_cast<char*>(to.data) + static_cast<std::size_t>(offset) * item, tensor.sizes(),
                  at::TensorOptions(to.dtype))
        .copy_(tensor);
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
void UccWindow::send_bytes(int rank, int tag, const void* data, std::size_t size, milliseconds timeout) {
  std::vector<at::Tensor> tensors{bytes(size)};
  std::memcpy(tensors.front().data_ptr(), data, size);
  group_->send(tensors, rank, tag, timeout);
}

bool UccWindow::is_present(const Notice& notice) const {
  const MutexLock lock(mutex_);
  return tensor_.defined() && notice.registration == registration_;
}

UccWindow::WorkPtr UccWindow::land(const Notice& notice, const std::function<WorkPtr(at::Tensor)>& post) {
  at::Tensor into;
  {
    const MutexLock lock(mutex_);
    if (!tensor_.defined() || notice.registration != registration_) {
      return nullptr;
    }
    const std::size_t whole = tensor_.nbytes();
    if (notice.offset > whole || notice.bytes > whole - notice.offset) {
      refuse("wait_signal", "a put of " + std::to_string(notice.bytes) + " bytes to offset " + std::to_string(notice.offset) +
                                " does not fit into the " + std::to_string(whole) + " bytes that are registered");
    }
    into = at::from_blob(
        static_cast<char*>(tensor_.data_ptr()) + notice.offset, {static_cast<std::int64_t>(notice.bytes)},
        [kept = tensor_](void*) {}, at::TensorOptions(at::kByte));
    ++posting_;
  }
  WorkPtr landing;
  std::exception_ptr error;
  try {
    landing = post(std::move(into));
  } catch (...) {
    error = std::current_exception();
  }
  const MutexLock lock(mutex_);
  --posting_;
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
  std::erase_if(landings_, [](const WorkPtr& each) { return each->isCompleted(); });
  landings_.push_back(landing);
  return landing;
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
  Notice notice;
  {
    const MutexLock lock(mutex_);
    target("signal to rank " + std::to_string(rank), rank);
    notice.registration = registration_;
  }
  notify(static_cast<int>(rank), notice, opts.timeout);
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
