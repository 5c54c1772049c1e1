#include "ucx/worker.h"

#include <algorithm>
#include <utility>

#include "ucx/config.h"
#include "ucx/status.h"
#include "ucx/tag_layout.h"

namespace torch_ucc {

UcxWorker::UcxWorker(const NamedValues& options) {
  const UcxConfig config = read_ucx_config(options);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_TAG;
  params.name = "torch_ucc";
  throw_if_error(from_ucx(ucp_init(&params, config.get(), context_.out()), "ucp_init"));
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  throw_if_error(from_ucx(ucp_context_query(context_.get(), &attributes), "ucp_context_query"));
  memory_types_ = attributes.memory_types;
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  throw_if_error(from_ucx(ucp_worker_create(context_.get(), &worker, worker_.out()), "ucp_worker_create"));
}

UcxWorker::~UcxWorker() {
  if (!is_unused()) {
    worker_.leak();
    context_.leak();
  }
}

// Nothing is posted, and without endpoints no peer knows where it could write.
bool UcxWorker::is_unused() const {
  return !has_outstanding() && std::all_of(endpoints_.begin(), endpoints_.end(), [](ucp_ep_h each) { return each == nullptr; });
}

void UcxWorker::destroy_if_unused(LoopToken& token) {
  if (is_unused()) {
    destroy(token);
  }
}

std::string UcxWorker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  throw_if_error(from_ucx(ucp_worker_get_address(worker_.get(), &address, &length), "ucp_worker_get_address"));
  std::string bytes(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker_.get(), address);
  return bytes;
}

void UcxWorker::set_peers(std::vector<std::string> addresses) {
  addresses_ = std::move(addresses);
  endpoints_.resize(addresses_.size());
}

std::optional<ucs_memory_type_t> UcxWorker::memory_type(const std::string& name) const {
  for (unsigned type = UCS_MEMORY_TYPE_HOST; type < UCS_MEMORY_TYPE_LAST; ++type) {
    if ((memory_types_ >> type & 1U) != 0 && name == ucs_memory_type_names[type]) {
      return static_cast<ucs_memory_type_t>(type);
    }
  }
  return std::nullopt;
}

ucp_ep_h UcxWorker::endpoint(LoopToken& token, std::size_t position) {
  token.check();
  ucp_ep_h& endpoint = endpoints_.at(position);
  if (endpoint == nullptr) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(addresses_[position].data());
    throw_if_error(from_ucx(ucp_ep_create(worker_.get(), &params, &endpoint), "ucp_ep_create"));
    addresses_[position] = {};  // UCX has copied what it needs
  }
  return endpoint;
}

Status UcxWorker::progress(LoopToken& token) {
  token.check();
  ucp_worker_progress(worker_.get());
  return {};
}

std::optional<std::string> UcxWorker::take_note(LoopToken& token) {
  token.check();
  if (note_request_ == nullptr) {
    ucp_tag_recv_info_t info{};
    ucp_tag_message_h const message =
        ucp_tag_probe_nb(worker_.get(), TagLayout::pack(Space::collective, TagLayout::kNotes, 0, 0), TagLayout::kExact, 1, &info);
    if (message == nullptr) {
      return std::nullopt;
    }
    note_.resize(std::min(info.length, kMaxNote));
    const ucp_request_param_t param{};
    note_request_ = ucp_tag_msg_recv_nbx(worker_.get(), note_.data(), note_.size(), message, &param);
  }
  if (note_request_ != nullptr) {
    const bool failed = UCS_PTR_IS_ERR(note_request_);
    const ucs_status_t status = failed ? UCS_PTR_STATUS(note_request_) : ucp_request_check_status(note_request_);
    if (status == UCS_INPROGRESS) {
      return std::nullopt;
    }
    if (!failed) {
      ucp_request_free(note_request_);
    }
    note_request_ = nullptr;
    if (status != UCS_OK) {
      return std::nullopt;
    }
  }
  return std::exchange(note_, {});
}

void UcxWorker::destroy(LoopToken& token) {
  token.check();
  endpoints_.clear();
  worker_.reset();
  context_.reset();
}

}  // namespace torch_ucc
