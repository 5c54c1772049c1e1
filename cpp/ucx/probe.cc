#include "ucx/probe.h"

#include <array>

#include "base/status.h"
#include "ucx/config.h"

namespace torch_ucc {
namespace {

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK) {
    throw StatusError(Status(StatusCode::transport, std::string(what) + ": UCX says '" + ucs_status_string(status) + "'"));
  }
}

}  // namespace

TransportProbe::TransportProbe(const NamedValues& options) {
  const UcxConfig config = read_ucx_config(options);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_AMO64;
  check(ucp_init(&params, config.get(), context_.out()), "ucp_init");
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_MULTI;
  check(ucp_worker_create(context_.get(), &worker, worker_.out()), "ucp_worker_create");
}

std::string TransportProbe::address() const {
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  check(ucp_worker_get_address(worker_.get(), &address, &length), "ucp_worker_get_address");
  std::string bytes(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker_.get(), address);
  return bytes;
}

std::vector<std::string> TransportProbe::transports_to(const std::string& address) const {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  ucp_ep_h endpoint = nullptr;
  check(ucp_ep_create(worker_.get(), &params, &endpoint), "ucp_ep_create");

  std::array<ucp_transport_entry_t, 16> entries{};
  ucp_ep_attr_t attributes{};
  attributes.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
  attributes.transports.entries = entries.data();
  attributes.transports.num_entries = entries.size();
  attributes.transports.entry_size = sizeof(ucp_transport_entry_t);
  check(ucp_ep_query(endpoint, &attributes), "ucp_ep_query");
  std::vector<std::string> transports;
  for (unsigned i = 0; i < attributes.transports.num_entries; ++i) {
    transports.push_back(std::string(entries[i].transport_name) + "/" + entries[i].device_name);
  }
  // The endpoint goes with the worker: nothing was sent that a close would have to flush
  return transports;
}

std::string ucx_library_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned patch = 0;
  ucp_get_version(&major, &minor, &patch);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

}  // namespace torch_ucc
