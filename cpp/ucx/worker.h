// Our own UCX worker: point-to-point messages and the collectives that are made of them. UCC does
// not share its own.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "base/unique_handle.h"
#include "progress/loop_token.h"
#include "progress/pollable.h"

namespace torch_ucc {

// Touched with the baton only, but for the constructor and address(). Endpoints are made at the
// first message to a peer, which involves nobody else.
class UcxWorker : public CountingPollable {
 public:
  // Throws StatusError. `options` as read_ucx_config() takes them; with those that UCC gets it
  // chooses the same transports.
  explicit UcxWorker(const NamedValues& options = {});
  // Leaks worker and endpoints unless it was never used or destroy() was called: peers may still
  // write to what was posted.
  ~UcxWorker() override;
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  // For the peers' set_peers().
  std::string address() const;
  // By position in the context. Once, before the first message.
  void set_peers(std::vector<std::string> addresses);

  // By UCX's name for it: a type of memory in which messages may be, which is up to its transports;
  // nothing for others. Any thread, always the same.
  std::optional<ucs_memory_type_t> memory_type(const std::string& name) const;

  // Throws StatusError.
  ucp_ep_h endpoint(LoopToken& token, std::size_t position);
  ucp_worker_h handle(LoopToken& token) const {
    token.check();
    return worker_.get();
  }

  Status progress(LoopToken& token) override;

  // The text of a note that a peer has sent, if one is there: a message for which nobody waits,
  // sent on a channel of the group TagLayout::kNotes as its rank 0, with Space::collective and tag
  // 0. It is at most kMaxNote bytes long.
  std::optional<std::string> take_note(LoopToken& token);
  static constexpr std::size_t kMaxNote = 4096;

  // Local. Everything must have been flushed, on all processes: see FlushWorker.
  void destroy(LoopToken& token);
  // Beside peers that are stuck: only if no message was ever sent and none is being received. It
  // must not be used afterwards.
  void destroy_if_unused(LoopToken& token);

 private:
  bool is_unused() const;

  UniqueHandle<ucp_context_h, ucp_cleanup> context_;
  UniqueHandle<ucp_worker_h, ucp_worker_destroy> worker_;
  std::uint64_t memory_types_ = 0;  // a bit each
  std::vector<std::string> addresses_;
  std::vector<ucp_ep_h> endpoints_;  // owned by the worker; null until the first message
  std::string note_;                 // that is arriving, by
  void* note_request_ = nullptr;     // null: none is
};

}  // namespace torch_ucc
