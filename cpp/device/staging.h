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

// The arguments of a call on their way to the functions of ops/prepared.h: those on the host go
// through as they are, those on a device are replaced by stand-ins, unless UCX or UCC may have them
// as they are. Refuses what no stand-in can be made for. Lives as long as the call.
class Staging {
 public:
  Staging(const Call& call, Lanes& lanes) : Staging(call, lanes, nullptr) {}
  // Of a call with one tensor, which goes through as it is where it is plain, not empty and of a
  // device whose memory UCX takes.
  static Staging of_message(const Call& call, Lanes& lanes, const std::shared_ptr<Direct>& direct) {
    return {call, lanes, &direct};
  }
  // Its tensors go through as they are where UCC works in the memory of their device, which is
  // decided here and written in the call: the same on all ranks. `tensors`: those, or some of them.
  static Staging of_collective(Call& call, at::TensorList tensors, Lanes& lanes, const std::shared_ptr<Direct>& direct) {
    call.device_memory = native_memory(call, tensors, *direct);
    return {call, lanes, &direct};
  }

  // What the call reads, writes without looking at it, or both. A tensor, a list of them or a list
  // of lists.
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
  // The call has no tensor, and comes behind what is queued on this device.
  void behind(c10::Device device) { belongs_to(device); }

  // Has what brings a result to the device by itself do so where copies back are queued.
  std::function<void()> on_the_way_back(std::function<void()> store) const;

  // Of the tensor that went through from a device, if one did.
  std::optional<ucs_memory_type_t> memory() const { return memory_; }

  // Once the call was found to be right: the copies to the host come behind what the caller has
  // queued so far, and can begin. The inputs and outputs of `prepared`, which is all that the call
  // is made of, become the caller's own tensors again. Null if no device has to do with the call.
  std::shared_ptr<Copies> begin(c10::ArrayRef<Prepared*> prepared);

 private:
  Staging(const Call& call, Lanes& lanes, const std::shared_ptr<Direct>* direct) : call_(call), lanes_(lanes), direct_(direct) {}

  // Nothing: UCC works in memory of the host.
  static std::optional<ucc_memory_type_t> native_memory(const Call& call, at::TensorList tensors, Direct& direct);
  at::Tensor& on_host(at::Tensor& tensor, Copies::Use use);
  Tensors& on_host(Tensors& tensors, Copies::Use use);
  TensorLists& on_host(TensorLists& lists, Copies::Use use);
  void look_at(const Tensors& tensors);
  // Whether UCC works on the tensors themselves.
  bool is_native() const { return copies_ != nullptr && call_.device_memory.has_value(); }
  void queue_on_device(Prepared& prepared);
  // Refuses a second device, the host included.
  void belongs_to(c10::Device device);

  const Call& call_;
  Lanes& lanes_;
  const std::shared_ptr<Direct>* const direct_;  // null: staged in any case
  std::optional<ucs_memory_type_t> memory_;
  std::optional<c10::Device> device_;  // of all tensors so far
  std::shared_ptr<Copies> copies_;     // null while that is the host

  // Where the stand-ins live that were handed out; deques, for they must not move.
  struct HandedOut {
    std::deque<at::Tensor> tensors;
    std::deque<Tensors> lists;
    std::deque<TensorLists> lists_of_lists;
  };
  std::unique_ptr<HandedOut> handed_out_;
};

}  // namespace torch_ucc
