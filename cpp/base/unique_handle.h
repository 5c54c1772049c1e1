// Owns a C handle and releases it once.
#pragma once

#include <utility>

namespace torch_ucc {

// `Release` is called with the handle exactly once, unless leak() was called first.
// A null handle owns nothing. Not thread safe.
template <typename Handle, auto Release>
class UniqueHandle {
 public:
  UniqueHandle() = default;
  explicit UniqueHandle(Handle handle) : handle_(handle) {}
  ~UniqueHandle() { reset(); }

  UniqueHandle(UniqueHandle&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, Handle{});
    }
    return *this;
  }
  UniqueHandle(const UniqueHandle&) = delete;
  UniqueHandle& operator=(const UniqueHandle&) = delete;

  Handle get() const { return handle_; }
  explicit operator bool() const { return handle_ != Handle{}; }

  // For C functions that store a new handle through a pointer. Releases the present handle first.
  Handle* out() {
    reset();
    return &handle_;
  }

  void reset() {
    if (handle_ != Handle{}) {
      Release(std::exchange(handle_, Handle{}));
    }
  }

  // Returns the handle and gives up ownership without releasing it, because UCC or UCX may still
  // use its object.
  Handle leak() { return std::exchange(handle_, Handle{}); }

 private:
  Handle handle_{};
};

}  // namespace torch_ucc
