// Tensors on devices in whose own memory UCX or UCC works: no stand-ins, and no copies.
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

// What one of the libraries is told of the memory of devices, by their types as torch names them.
template <typename Type>
class MemoryTypes {
 public:
  struct Entry {
    std::optional<Type> type;  // without one the library must not see an address of it
    std::string why_not{};
  };
  using Entries = std::map<std::string, Entry>;

  // Of no device. The texts are for people: which operations, the setting that asks for it, the
  // library.
  MemoryTypes(const char* operations, const char* setting, const char* library)
      : operations_(operations), setting_(setting), library_(library) {}

  // Wanted, and so much can be had. Before the first operation.
  void set(Entries entries) {
    entries_ = std::move(entries);
    wanted_ = true;
  }

  // Of the memory of this device; nothing where it goes by way of the host. Says so once, where it
  // was wanted and cannot be. Any thread.
  std::optional<Type> of(c10::Device device);

 private:
  const char* const operations_;
  const char* const setting_;
  const char* const library_;
  Entries entries_;
  bool wanted_ = false;
  std::atomic<bool> warned_{false};
};

// Of which devices, and which of them the libraries are at work on. Of one context.
class Direct {
 public:
  MemoryTypes<ucs_memory_type_t> messages{"messages", "TORCH_UCC_DEVICE_P2P=direct", "UCX"};
  MemoryTypes<ucc_memory_type_t> collectives{"collectives", "TORCH_UCC_DEVICE_COLLECTIVES=native", "UCC"};
  // On which UCC started, and so the only one of which collectives are native.
  std::optional<c10::Device> device_of_collectives{};

  // Of an operation, which the engine may give up in between: then the libraries may be at work for
  // ever. `stream`: any of its device.
  void begin(LoopToken& token, const c10::Stream& stream);
  void end(LoopToken& token);

  // While it lives, the device that they are at work on is the current one of this thread; that
  // whose operation began last, of several. Does nothing while they are at work on none. Not every
  // UCX finds the context of the memory by itself: some copy in that which is current where they
  // are driven; and UCC keeps its streams by that context.
  class OnDevice {
   public:
    OnDevice(LoopToken& token, const Direct& direct) noexcept;

   private:
    c10::OptionalDeviceGuard guard_;
  };

  // The calling thread's current device, which is in use from now on as after a first tensor there;
  // nothing where torch has none.
  static std::optional<c10::Device> use_current_device();

 private:
  // Of whoever has the baton.
  std::size_t under_way_ = 0;
  std::optional<c10::Stream> latest_;
};

}  // namespace torch_ucc
