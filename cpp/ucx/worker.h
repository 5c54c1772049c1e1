// Our own UCX worker, which carries messages between hosts, and on a host without shared memory. UCC
// does not share its worker.
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
#include "messages/carrier.h"
#include "progress/loop_token.h"

namespace torch_ucc {

// Members that take a LoopToken need the baton. The worker makes the endpoint to a peer at the
// first message to that peer, without the peer's help.
class UcxWorker final : public Carrier {
 public:
  // Throws StatusError. `options` are those of read_ucx_config(). With the options that UCC gets,
  // UCX chooses the same transports for this worker.
  explicit UcxWorker(const NamedValues& options = {});
  // If the worker was used and destroy() was not called, leaks worker and endpoints, because peers
  // may still write to posted memory.
  ~UcxWorker() override;
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  // The address that the peers pass to set_peers().
  std::string address() const;
  // The addresses of all members, by position in the context. Called once, before the first
  // message.
  void set_peers(std::vector<std::string> addresses);

  // UCX's type of the memory with this name (in UCX's words), if its transports can send and
  // receive in that memory; else nothing. Any thread; the answer never changes.
  std::optional<MessageMemory> memory_type(const std::string& name) const;

  // The endpoint to a peer, which is made at its first use. Throws StatusError.
  ucp_ep_h endpoint(LoopToken& token, std::size_t position);
  ucp_worker_h handle(LoopToken& token) const {
    token.check();
    return worker_.get();
  }

  Status progress(LoopToken& token) override;

  // UCX packs and unpacks host memory through callbacks, so it never sees memory of a caller. It
  // cannot take back what is being sent.
  void send(LoopToken& token, std::uint64_t position, std::uint64_t tag, Parcel& parcel) override;
  void receive(LoopToken& token, std::uint64_t position, std::uint64_t tag, Parcel& parcel) override;
  void receive_from_any(LoopToken& token, std::uint64_t tag, Parcel& parcel) override;
  bool receive_arrived(LoopToken& token, std::uint64_t tag, Parcel& parcel) override;
  void cancel(LoopToken& token, Parcel& parcel) override;
  bool cancels_at_once(std::uint64_t /*position*/) const override { return false; }

  // Returns the text of a note from a peer, if one has arrived (see TagLayout::note()).
  std::optional<std::string> take_note(LoopToken& token);

  // Destroys the worker without any peer. All processes must have flushed everything before: see
  // FlushWorker.
  void destroy(LoopToken& token);
  // For use when peers are stuck: destroys the worker if no message was ever sent and no receive is
  // in flight. The worker must not be used afterwards.
  void destroy_if_unused(LoopToken& token);

 private:
  bool is_unused() const;
  void receive_matching(LoopToken& token, std::uint64_t tag, std::uint64_t mask, Parcel& parcel);

  UniqueHandle<ucp_context_h, ucp_cleanup> context_;
  UniqueHandle<ucp_worker_h, ucp_worker_destroy> worker_;
  std::uint64_t memory_types_ = 0;  // one bit for each type
  std::vector<std::string> addresses_;
  std::vector<ucp_ep_h> endpoints_;  // owned by the worker; null until the first message
  std::string note_;                 // the note that is arriving
  void* note_request_ = nullptr;     // of that note; null if none is arriving
};

}  // namespace torch_ucc
