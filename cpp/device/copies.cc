#include "device/copies.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "device/out_of_sight.h"
#include "ops/tensor_span.h"

namespace torch_ucc {
namespace {

// About how many copies a call queues in each direction. More copies would take time of the calling
// thread, and places in the device's queue, which are limited.
constexpr std::size_t kMostCopies = 64;

// Keeps the memory of `tensor` from being reused before the stream has come this far, even if
// nothing holds the tensor any more.
void keep_for(const c10::Stream& stream, const at::Tensor& tensor) {
  c10::impl::VirtualGuardImpl(stream.device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

// A range of the bytes of a plain tensor. The range may end within an element.
at::Tensor bytes_in(const at::Tensor& tensor, std::size_t first, std::size_t count) {
  return tensor.view({-1}).view(at::kByte).narrow(0, static_cast<std::int64_t>(first), static_cast<std::int64_t>(count));
}

Status failure_of_device(const std::exception& error) {
  return Status(StatusCode::transport, std::string("its device failed: ") + error.what());
}

}  // namespace

Copies::Copies(c10::Device device, const Lane& lane)
    : device_(device), done_(std::make_shared<Fence>(lane.to_device)), arrived_{std::make_shared<Fence>(lane.from_device)} {}

Copies::~Copies() {
  HostBlocks& blocks = HostBlocks::of(device_.type());
  for (Twin& twin : twins_) {
    if (twin.block.defined()) {
      blocks.give(std::move(twin.block), done_->raised() ? done_ : arrived_.back());
    }
  }
}

at::Tensor Copies::add(const at::Tensor& tensor, Use use) {
  const c10::InferenceMode below_autograd(true);
  const at::TensorOptions options = at::TensorOptions().dtype(tensor.scalar_type());
  Twin twin{tensor, {}, {}, use};
  if (tensor.numel() == 0) {
    twin.host = at::empty(tensor.sizes(), options);
  } else {
    twin.block = HostBlocks::of(device_.type()).take(tensor.nbytes());
    twin.host = at::from_blob(twin.block.mutable_data_ptr(), tensor.sizes(), options);
  }
  by_host_.emplace(twin.host.unsafeGetTensorImpl(), twins_.size());
  twins_.push_back(std::move(twin));
  return twins_.back().host;
}

void Copies::keep_for_the_way_back(const at::Tensor& tensor) const {
  if (tensor.numel() != 0) {
    keep_for(done_->stream(), tensor);
  }
}

// Slices are possible only if the network works on the stand-ins themselves, so without loads and
// store. If there are pieces, no stand-in is empty. All ranks cut the operation in the same way,
// but each rank may cut its copies as it likes.
void Copies::follow(Prepared& prepared) {
  Pieces& pieces = prepared.pieces;
  if (pieces.count == 0 || !prepared.loads.empty() || prepared.store) {
    return;
  }
  const auto may_block = [](const Twin& twin) { return !is_plain(twin.tensor) || !twin.block.is_pinned(); };
  if (std::any_of(twins_.begin(), twins_.end(), may_block)) {
    return;
  }
  const std::size_t part = pieces.total * pieces.element_size;
  std::size_t parts = 0;
  for (const Twin& twin : twins_) {
    parts += bytes_of(twin.host) / part;
  }
  slices_ = Slices::of(pieces, parts, kMostCopies);
  if (!slices_) {
    return;
  }
  overlaps_ = overlaps_by(part);
  while (arrived_.size() < slices_->number) {
    arrived_.push_back(std::make_shared<Fence>(arrived_.front()->stream()));
  }
  pieces.flow = this;
}

// Whether a piece is copied back to memory that another piece is copied from. Parts of ranks that
// lie exactly on each other do no harm, because each piece is copied back to where it came from.
bool Copies::overlaps_by(std::size_t part) const {
  const auto collide = [part](const Twin& written, const Twin& read) {
    const auto distance = static_cast<const char*>(source_of(written.tensor)) - static_cast<const char*>(source_of(read.tensor));
    return written.use.written && read.use.read && shares_memory(written.tensor, read.tensor) &&
           distance % static_cast<std::ptrdiff_t>(part) != 0;
  };
  return std::any_of(twins_.begin(), twins_.end(), [&](const Twin& written) {
    return std::any_of(twins_.begin(), twins_.end(), [&](const Twin& read) { return collide(written, read); });
  });
}

template <typename Copy>
void Copies::each_of(const Twin& twin, std::size_t slice, const Copy& copy) const {
  if (!slices_) {
    copy(twin.tensor, twin.host);
    return;
  }
  const std::size_t offset = slices_->offset_of(slice);
  const std::size_t count = slices_->bytes_of(slice);
  for (std::size_t part = 0; part < bytes_of(twin.host); part += slices_->part) {
    copy(bytes_in(twin.tensor, part + offset, count), bytes_in(twin.host, part + offset, count));
  }
}

void Copies::come_behind_caller() {
  called_.emplace(Fence::current_stream(device_));
  called_->raise();
}

void Copies::begin(bool after_others) {
  const OutOfSight out_of_sight;
  const c10::Stream& stream = arrived_.front()->stream();
  const c10::StreamGuard guard(stream);
  called_->block(stream);
  if (after_others) {
    Fence::order(done_->stream(), stream);
  }
  try {
    for (std::size_t slice = 0; slice < arrived_.size(); ++slice) {
      for (const Twin& twin : twins_) {
        if (twin.use.read && twin.tensor.numel() != 0) {
          keep_for(stream, twin.tensor);
          each_of(twin, slice,
                  [](const at::Tensor& device, const at::Tensor& host) { host.copy_(plain(device), /*non_blocking=*/true); });
        }
      }
      arrived_[slice]->raise();
    }
  } catch (...) {
    arrived_.back()->raise();  // copies that are queued still write to the blocks
    throw;
  }
}

std::optional<Status> Copies::arrived(std::size_t piece) {
  try {
    const bool there = arrived_[slices_ ? slices_->of_piece(piece) : 0]->passed();
    hold_up_.store(!there, std::memory_order_relaxed);
    return there ? std::optional(Status()) : std::nullopt;
  } catch (const std::exception& error) {
    // The device is broken, and the peers will wait for this operation
    return failure_of_device(error);
  }
}

Status Copies::ended(std::size_t piece) {
  try {
    const MutexLock lock(back_mutex_);
    if (!stopped_ && slices_->end_with(piece)) {
      bring_back_next();
    }
    return {};
  } catch (const std::exception& error) {
    return failure_of_device(error);
  }
}

void Copies::end() {
  const MutexLock lock(back_mutex_);
  try {
    while (back_ < arrived_.size()) {
      bring_back_next();
    }
  } catch (...) {
    done_->raise();  // copies that are queued still read the blocks, and write to the caller's tensors
    throw;
  }
}

void Copies::stop() noexcept {
  const MutexLock lock(back_mutex_);
  stopped_ = true;
  if (done_->raised()) {
    return;
  }
  try {
    if (arrived_.back()->raised()) {
      arrived_.back()->block(done_->stream());
    }
    done_->raise();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): nothing runs on that device any more
  }
}

void Copies::bring_back_next() {
  const OutOfSight out_of_sight;
  const c10::Stream& stream = done_->stream();
  const c10::StreamGuard guard(stream);
  if (overlaps_) {
    arrived_.back()->block(stream);
  }
  for (const Twin& twin : twins_) {
    if (twin.use.written && twin.tensor.numel() != 0) {
      keep_for(stream, twin.tensor);
      each_of(twin, back_, [](const at::Tensor& device, const at::Tensor& host) { device.copy_(host, /*non_blocking=*/true); });
    }
  }
  if (++back_ == arrived_.size()) {
    done_->raise();
  }
}

}  // namespace torch_ucc
