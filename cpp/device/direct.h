// Tensors in device memory that UCX or UCC uses directly, without stand-ins and copies.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "compat/torch_compat.h"
#include "ops/prepared.h"
#include "progress/loop_token.h"

namespace torch_ucc {

// The memory types by which one library, UCC or UCX, knows the memory of devices. The keys are
// torch's names of the device types.
template <typename Type>
class MemoryTypes {
 public:
  struct Entry {
    std::optional<Type> type;  // empty: the library must not see addresses in this memory
    std::string why_not{};
  };
  using Entries = std::map<std::string, Entry>;

  // Starts without any device. The texts are for a warning: the operations, the setting that asks
  // for device memory, and the library.
  MemoryTypes(const char* operations, const char* setting, const char* library)
      : operations_(operations), setting_(setting), library_(library) {}

  // Says that the user wants device memory to be used, and which types are possible. Called before
  // the first operation.
  void set(Entries entries) {
    entries_ = std::move(entries);
    wanted_ = true;
  }

  // The type of the memory of `device`; nothing if its tensors go through host memory. Warns once
  // if the user wanted device memory and it is not possible. Any thread.
  std::optional<Type> of(c10::Device device);

 private:
  const char* const operations_;
  const char* const setting_;
  const char* const library_;
  Entries entries_;
  bool wanted_ = false;
  std::atomic<bool> warned_{false};
};

// The devices whose memory UCX and UCC may use directly, and the device that they are using now.
// One object for each context.
class Direct {
 public:
  MemoryTypes<MessageMemory> messages{"messages", "TORCH_UCC_DEVICE_P2P=direct", "UCX"};
  MemoryTypes<ucc_memory_type_t> collectives{"collectives", "TORCH_UCC_DEVICE_COLLECTIVES=native", "UCC"};
  // The current device when UCC started. UCC works only in the memory of this device.
  std::optional<c10::Device> device_of_collectives{};

  // Called when an operation in device memory begins and when it ends. If the engine gives the
  // operation up, end() is not called, since the libraries may use the memory for ever. `stream` is
  // any stream of the device.
  void begin(LoopToken& token, const c10::Stream& stream);
  void end(LoopToken& token);

  // While an OnDevice lives, the device that the libraries use is the current device of this
  // thread. If they use several, the current device is that of the operation that began last. Does
  // nothing if they use none. Some versions of UCX need this, because they copy in the driver
  // context that is current in the thread that drives. UCC keeps its streams by that context.
  class OnDevice {
   public:
    OnDevice(LoopToken& token, const Direct& direct) noexcept;

   private:
    c10::OptionalDeviceGuard guard_;
  };

  // Returns the current device of the calling thread and starts to use it, as a first tensor there
  // would. Returns nothing if torch has no device.
  static std::optional<c10::Device> use_current_device();

 private:
  // Used with the baton.
  std::size_t under_way_ = 0;
  std::optional<c10::Stream> latest_;
};

}  // namespace torch_ucc
