// The arguments of a call, with stand-ins on the host for those on a device.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "compat/torch_compat.h"
#include "device/copies.h"
#include "device/direct.h"
#include "device/lanes.h"
#include "ops/call.h"
#include "ops/prepared.h"

namespace torch_ucc {

// Prepares the arguments of a call for the functions of ops/prepared.h. Tensors on the host pass
// unchanged. Tensors on a device are replaced by stand-ins, unless UCX or UCC may use them
// directly. Refuses a tensor that can have no stand-in. Lives as long as the call.
class Staging {
 public:
  Staging(const Call& call, Lanes& lanes) : Staging(call, lanes, nullptr) {}
  // For a message with one tensor. The tensor passes unchanged if it is plain, not empty, and on a
  // device whose memory UCX takes.
  static Staging of_message(const Call& call, Lanes& lanes, const std::shared_ptr<Direct>& direct) {
    return {call, lanes, &direct};
  }
  // For a collective. Its tensors pass unchanged if UCC works in the memory of their device. This
  // is decided here, with the same result on all ranks, and written to the call. `tensors` are all
  // tensors of the call, or some of them.
  static Staging of_collective(Call& call, at::TensorList tensors, Lanes& lanes, const std::shared_ptr<Direct>& direct) {
    call.device_memory = native_memory(call, tensors, *direct);
    return {call, lanes, &direct};
  }

  // Return what to use instead of an argument that the call reads, writes without reading it, or
  // both. An argument is a tensor, a list of tensors or a list of lists.
  template <typename Argument>
  Argument& read(Argument& argument) {
    return on_host(argument, {.read = true, .written = false});
  }
  template <typename Argument>
  Argument& written(Argument& argument) {
    return on_host(argument, {.read = false, .written = true});
  }
  template <typename Argument>
  Argument& updated(Argument& argument) {
    return on_host(argument, {.read = true, .written = true});
  }
  // Puts the call behind what is queued on this device, though it passes no tensor through this
  // object.
  void behind(c10::Device device) { belongs_to(device); }

  // Returns `store` so that it runs on the stream of the copies back. For a `store` that itself
  // copies the result to the device.
  std::function<void()> on_the_way_back(std::function<void()> store) const;

  // UCX's type of the memory of a device tensor that passed unchanged, if one did.
  std::optional<MessageMemory> memory() const { return memory_; }

  // Called once the call is known to be right. Puts the copies to the host behind what the caller
  // has queued so far, and returns them ready for Copies::begin(). `prepared` are all operations of
  // the call; their inputs and outputs become the caller's own tensors again. Returns null if no
  // device is involved.
  std::shared_ptr<Copies> begin(c10::ArrayRef<Prepared*> prepared);

 private:
  Staging(const Call& call, Lanes& lanes, const std::shared_ptr<Direct>* direct) : call_(call), lanes_(lanes), direct_(direct) {}

  // UCC's type of the device memory that it works in; nothing if it works in host memory. Refuses
  // tensors on another device than that on which UCC started.
  static std::optional<ucc_memory_type_t> native_memory(const Call& call, at::TensorList tensors, Direct& direct);
  at::Tensor& on_host(at::Tensor& tensor, Copies::Use use);
  Tensors& on_host(Tensors& tensors, Copies::Use use);
  TensorLists& on_host(TensorLists& lists, Copies::Use use);
  void look_at(const Tensors& tensors);
  // Whether UCC works on the tensors themselves.
  bool is_native() const { return copies_ != nullptr && call_.device_memory.has_value(); }
  void queue_on_device(Prepared& prepared);
  // Records the device of a tensor. Refuses a second device; the host counts as one. Refuses a
  // device whose current stream is being captured into a graph.
  void belongs_to(c10::Device device);

  const Call& call_;
  Lanes& lanes_;
  const std::shared_ptr<Direct>* const direct_;  // null: always use stand-ins
  std::optional<MessageMemory> memory_;
  std::optional<c10::Device> device_;  // of all tensors so far
  std::shared_ptr<Copies> copies_;     // null while all tensors are on the host

  // The stand-ins that were handed out. Deques, because the stand-ins must not move.
  struct HandedOut {
    std::deque<at::Tensor> tensors;
    std::deque<Tensors> lists;
    std::deque<TensorLists> lists_of_lists;
  };
  std::unique_ptr<HandedOut> handed_out_;
};

}  // namespace torch_ucc
