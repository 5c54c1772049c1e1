// Tensors on devices whose own memory UCX is handed: no stand-ins, and no copies.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/settings.h"
#include "compat/torch_compat.h"
#include "ops/prepared.h"
#include "progress/loop_token.h"

namespace torch_ucc {

// Of which devices, and which of them UCX is at work on. Of one context.
class Direct {
 public:
  // What UCX calls memory of this name; nothing if it does not take such memory.
  using Ask = std::function<std::optional<ucs_memory_type_t>(const std::string&)>;

  // `wanted`: types of devices, as torch names them, and UCX's name of the memory of each. Without any, of no device.
  Direct(const NamedValues& wanted, const Ask& ask);

  // What UCX is to be told of the memory of this device; nothing where it must not see an address of it. Says so once, where it
  // was wanted and cannot be. Any thread.
  std::optional<ucs_memory_type_t> type_of(c10::Device device);

  // Of an operation, which the engine may give up in between: then UCX may be at work for ever. `stream`: any of its device.
  void begin(LoopToken& token, const c10::Stream& stream);
  void end(LoopToken& token);

  // While it lives, the device that UCX is at work on is the current one of this thread; that whose operation began last, of
  // several. Does nothing while it is at work on none. Not every UCX finds the context of the memory by itself: some copy in that
  // which is current where they are driven.
  class OnDevice {
   public:
    OnDevice(LoopToken& token, const Direct& direct) noexcept;

   private:
    c10::OptionalDeviceGuard guard_;
  };

 private:
  struct Wanted {
    std::string name;                       // UCX's
    std::optional<ucs_memory_type_t> type;  // if it takes such memory
  };
  std::map<std::string, Wanted> wanted_;  // by type of device; never changes
  std::atomic<bool> warned_{false};

  // Of whoever has the baton.
  std::size_t under_way_ = 0;
  std::optional<c10::Stream> latest_;
};

}  // namespace torch_ucc
