#include "ucx/worker.h"

#include <algorithm>
#include <utility>

#include "messages/tag_layout.h"
#include "ucx/config.h"
#include "ucx/status.h"

namespace torch_ucc {
namespace {

// The data of a small message lies in its parcel, where UCX reads and writes it directly. That is
// faster than a callback.
bool is_small(const Parcel& parcel) { return !parcel.message().direct && parcel.bytes() <= sizeof(parcel.small); }

// A generic datatype of UCX: UCX calls pack() for each part of a message that it sends and unpack()
// for each part that has arrived, in any order. The buffer that UCX is given is the parcel.
struct Copier {
  static void* begin_pack(void* /*context*/, const void* parcel, std::size_t /*count*/) { return const_cast<void*>(parcel); }
  static void* begin_unpack(void* /*context*/, void* parcel, std::size_t /*count*/) { return parcel; }
  static std::size_t packed_size(void* parcel) { return static_cast<Parcel*>(parcel)->bytes(); }

  static std::size_t pack(void* state, std::size_t offset, void* to, std::size_t room) {
    auto& parcel = *static_cast<Parcel*>(state);
    const std::size_t bytes = std::min(room, parcel.bytes() - offset);
    parcel.pack(offset, to, bytes);  // cannot fail: what is still to be sent was copied
    return bytes;
  }
  static ucs_status_t unpack(void* state, std::size_t offset, const void* from, std::size_t length) {
    static_cast<Parcel*>(state)->unpack(offset, from, length);
    return UCS_OK;
  }
  static void end(void* /*parcel*/) {}

  static ucp_datatype_t type() {
    static const ucp_datatype_t one = [] {
      const ucp_generic_dt_ops_t calls{begin_pack, begin_unpack, packed_size, pack, unpack, end};
      ucp_datatype_t made{};
      throw_if_error(from_ucx(ucp_dt_create_generic(&calls, nullptr, &made), "ucp_dt_create_generic"));
      return made;
    }();
    return one;
  }
};

// They run inside progress() and only record how a message ended. The parcel of a message in flight
// has UCX's request as its handle, if that can be cancelled.
struct Callbacks {
  static void sent(void* request, ucs_status_t status, void* parcel) {
    static_cast<Parcel*>(parcel)->ended(from_ucx(status));
    ucp_request_free(request);
  }
  static void received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* data) {
    auto& parcel = *static_cast<Parcel*>(data);
    if (status != UCS_OK && status != UCS_ERR_MESSAGE_TRUNCATED) {
      parcel.ended(from_ucx(status));
    } else {
      if (status == UCS_OK && info->length == parcel.bytes() && is_small(parcel)) {
        parcel.unpack(0, parcel.small.data(), parcel.bytes());
      }
      parcel.ended({}, TagLayout::source_of(info->sender_tag), info->length);
    }
    ucp_request_free(request);
  }
};

// What UCX is given of a parcel.
struct Buffer {
  explicit Buffer(Parcel& parcel) : data(&parcel) {
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.user_data = &parcel;
    if (parcel.message().direct || is_small(parcel)) {
      param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
      param.memory_type = static_cast<ucs_memory_type_t>(parcel.message().direct.value_or(UCS_MEMORY_TYPE_HOST));
      data = is_small(parcel) ? parcel.small.data() : parcel.message().data;
      count = parcel.bytes();
    } else {
      param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
      param.datatype = Copier::type();
    }
  }
  void receives() {
    // Only the callback learns the source of a message that is too long
    param.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    param.cb.recv = Callbacks::received;
  }

  ucp_request_param_t param{};
  void* data;
  std::size_t count = 1;
};

}  // namespace

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

std::optional<MessageMemory> UcxWorker::memory_type(const std::string& name) const {
  for (unsigned type = UCS_MEMORY_TYPE_HOST; type < UCS_MEMORY_TYPE_LAST; ++type) {
    if ((memory_types_ >> type & 1U) != 0 && name == ucs_memory_type_names[type]) {
      return static_cast<MessageMemory>(type);
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

void UcxWorker::send(LoopToken& token, std::uint64_t position, std::uint64_t tag, Parcel& parcel) {
  parcel.begin(token, *this);
  Buffer buffer(parcel);
  buffer.param.cb.send = Callbacks::sent;
  if (is_small(parcel)) {
    parcel.pack(0, buffer.data, buffer.count);
  }
  try {
    void* const request = ucp_tag_send_nbx(endpoint(token, position), buffer.data, buffer.count, tag, &buffer.param);
    if (!UCS_PTR_IS_PTR(request)) {
      parcel.ended(from_ucx(UCS_PTR_STATUS(request)));
    }
  } catch (const StatusError& error) {
    parcel.ended(error.status());
  }
}

void UcxWorker::receive(LoopToken& token, std::uint64_t /*position*/, std::uint64_t tag, Parcel& parcel) {
  receive_matching(token, tag, TagLayout::kExact, parcel);
}

void UcxWorker::receive_from_any(LoopToken& token, std::uint64_t tag, Parcel& parcel) {
  receive_matching(token, tag, TagLayout::kAnySource, parcel);
}

bool UcxWorker::receive_arrived(LoopToken& token, std::uint64_t tag, Parcel& parcel) {
  ucp_tag_recv_info_t info{};
  ucp_tag_message_h const message = ucp_tag_probe_nb(handle(token), tag, TagLayout::kAnySource, 1, &info);
  if (message == nullptr) {
    return false;
  }
  parcel.begin(token, *this);
  Buffer buffer(parcel);
  buffer.receives();
  void* const request = ucp_tag_msg_recv_nbx(handle(token), buffer.data, buffer.count, message, &buffer.param);
  if (!UCS_PTR_IS_PTR(request)) {
    parcel.ended(from_ucx(UCS_PTR_STATUS(request)));
  }
  return true;
}

void UcxWorker::receive_matching(LoopToken& token, std::uint64_t tag, std::uint64_t mask, Parcel& parcel) {
  parcel.begin(token, *this);
  Buffer buffer(parcel);
  buffer.receives();
  void* const request = ucp_tag_recv_nbx(handle(token), buffer.data, buffer.count, tag, mask, &buffer.param);
  if (UCS_PTR_IS_PTR(request)) {
    parcel.handle = request;
  } else {
    parcel.ended(from_ucx(UCS_PTR_STATUS(request)));
  }
}

// Cancels a receive that no message has matched. UCX calls its callback at once.
void UcxWorker::cancel(LoopToken& token, Parcel& parcel) {
  if (parcel.handle != nullptr) {
    ucp_request_cancel(handle(token), parcel.handle);
  }
}

std::optional<std::string> UcxWorker::take_note(LoopToken& token) {
  token.check();
  if (note_request_ == nullptr) {
    ucp_tag_recv_info_t info{};
    ucp_tag_message_h const message = ucp_tag_probe_nb(worker_.get(), TagLayout::note(), TagLayout::kExact, 1, &info);
    if (message == nullptr) {
      return std::nullopt;
    }
    note_.resize(std::min(info.length, TagLayout::kMaxNote));
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
