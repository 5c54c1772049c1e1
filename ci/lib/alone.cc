// UCC and UCX by themselves, in loops of C: what is left of the time of a call if nothing stands
// above them. ci/bench builds this file, and torch_ucc.bench.libraries.alone calls it. Nothing here
// comes from the extension, so that its faults cannot hide in what it is set beside.
#include <sched.h>
#include <ucc/api/ucc.h>
#include <ucp/api/ucp.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace {

// Of all ranks, in their order. Blocks.
using Allgather = void (*)(const void* own, std::size_t bytes, void* all);

// torch_ucc.bench.libraries.alone has the same two structs. A collective is of float32.
struct Collective {
  std::uint64_t type;  // ucc_coll_type_t
  void* source;        // the same as the destination: in place
  std::uint64_t source_count;
  void* destination;
  std::uint64_t destination_count;
};

struct Message {
  std::int64_t peer;
  std::int64_t is_sent;
  void* buffer;
  std::uint64_t bytes;
};

// For the life of the process, as all that is opened for it.
struct Place {
  int rank = 0;
  int size = 0;
  bool crowded = false;  // more ranks than cores: whoever waits gives its core away
  Allgather allgather = nullptr;
  ucc_context_h context = nullptr;
  ucc_team_h team = nullptr;
  ucp_worker_h worker = nullptr;
  std::vector<ucp_ep_h> endpoints;
  std::vector<ucc_coll_req_h> begun;
} here;

// What cannot be measured ends the process, and with it the turn of this peer.
[[noreturn]] void give_up(const char* what, const char* why) {
  std::fprintf(stderr, "alone: %s: %s\n", what, why);
  std::_Exit(1);
}

void check(ucc_status_t status, const char* what) {
  if (status < UCC_OK) {
    give_up(what, ucc_status_string(status));
  }
}

void check(ucs_status_t status, const char* what) {
  if (status < UCS_OK) {
    give_up(what, ucs_status_string(status));
  }
}

void wait_a_little() {
  if (here.crowded) {
    sched_yield();
  }
}

double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

ucc_status_t allgather(void* own, void* all, std::size_t bytes, void* /*info*/, void** request) {
  here.allgather(own, bytes, all);
  *request = &here;
  return UCC_OK;
}

// Of all ranks. `params` says by what these find each other.
ucc_team_h create(ucc_team_params_t params) {
  params.mask |= UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE;
  params.ep = static_cast<std::uint64_t>(here.rank);
  params.ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG;
  ucc_team_h team = nullptr;
  check(ucc_team_create_post(&here.context, 1, &params, &team), "ucc_team_create_post");
  for (ucc_status_t status = UCC_INPROGRESS; status == UCC_INPROGRESS; wait_a_little()) {
    check(ucc_context_progress(here.context), "ucc_context_progress");
    check(status = ucc_team_create_test(team), "ucc_team_create_test");
  }
  return team;
}

void open_ucc() {
  ucc_lib_config_h lib_config = nullptr;
  ucc_lib_h lib = nullptr;
  check(ucc_lib_config_read(nullptr, nullptr, &lib_config), "ucc_lib_config_read");
  ucc_lib_params_t lib_params{};
  check(ucc_init(&lib_params, lib_config, &lib), "ucc_init");
  ucc_context_config_h config = nullptr;
  check(ucc_context_config_read(lib, nullptr, &config), "ucc_context_config_read");
  ucc_context_params_t params{};
  params.mask = UCC_CONTEXT_PARAM_FIELD_OOB;
  params.oob.allgather = allgather;
  params.oob.req_test = [](void*) { return UCC_OK; };
  params.oob.req_free = [](void*) { return UCC_OK; };
  params.oob.n_oob_eps = static_cast<std::uint32_t>(here.size);
  params.oob.oob_ep = static_cast<std::uint32_t>(here.rank);
  check(ucc_context_create(lib, &params, config, &here.context), "ucc_context_create");
  ucc_team_params_t team{};
  team.mask = UCC_TEAM_PARAM_FIELD_OOB;
  team.oob = params.oob;
  here.team = create(team);
}

void open_ucx() {
  ucp_config_t* config = nullptr;
  check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG;
  ucp_context_h context = nullptr;
  check(ucp_init(&params, config, &context), "ucp_init");
  const ucp_worker_params_t worker{};
  check(ucp_worker_create(context, &worker, &here.worker), "ucp_worker_create");
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  check(ucp_worker_get_address(here.worker, &address, &length), "ucp_worker_get_address");
  constexpr std::size_t kMost = 4096;  // far more than the transports of a host take
  if (length > kMost) {
    give_up("ucp_worker_get_address", "an address of more than 4 KiB");
  }
  const auto size = static_cast<std::size_t>(here.size);
  std::string own(reinterpret_cast<const char*>(address), length);
  std::string all(size * kMost, '\0');
  own.resize(kMost);
  here.allgather(own.data(), kMost, all.data());
  here.endpoints.resize(size);
  for (std::size_t rank = 0; rank < size; ++rank) {
    ucp_ep_params_t endpoint{};
    endpoint.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    endpoint.address = reinterpret_cast<const ucp_address_t*>(all.data() + rank * kMost);
    check(ucp_ep_create(here.worker, &endpoint, &here.endpoints[rank]), "ucp_ep_create");
  }
}

ucc_coll_req_h post(const Collective& wanted) {
  ucc_coll_args_t args{};
  args.coll_type = static_cast<ucc_coll_type_t>(wanted.type);
  args.src.info = {wanted.source, wanted.source_count, UCC_DT_FLOAT32, UCC_MEMORY_TYPE_HOST};
  args.dst.info = {wanted.destination, wanted.destination_count, UCC_DT_FLOAT32, UCC_MEMORY_TYPE_HOST};
  args.op = UCC_OP_SUM;  // and 0 is the root
  if (wanted.source == wanted.destination && wanted.source != nullptr) {
    args.mask = UCC_COLL_ARGS_FIELD_FLAGS;
    args.flags = UCC_COLL_ARGS_FLAG_IN_PLACE;
  }
  ucc_coll_req_h request = nullptr;
  check(ucc_collective_init(&args, &request, here.team), "ucc_collective_init");
  check(ucc_collective_post(request), "ucc_collective_post");
  return request;
}

void finish(ucc_coll_req_h request) {
  for (;;) {
    const ucc_status_t status = ucc_collective_test(request);
    check(status, "ucc_collective_test");
    if (status == UCC_OK) {
      break;
    }
    check(ucc_context_progress(here.context), "ucc_context_progress");
    wait_a_little();
  }
  check(ucc_collective_finalize(request), "ucc_collective_finalize");
}

void finish_begun() {
  for (ucc_coll_req_h request : here.begun) {
    finish(request);
  }
  here.begun.clear();
}

ucs_status_ptr_t begin(const Message& message) {
  constexpr ucp_tag_t kTag = 1;
  const ucp_request_param_t param{};
  return message.is_sent != 0 ? ucp_tag_send_nbx(here.endpoints[static_cast<std::size_t>(message.peer)], message.buffer,
                                                 message.bytes, kTag, &param)
                              : ucp_tag_recv_nbx(here.worker, message.buffer, message.bytes, kTag, ~ucp_tag_t{0}, &param);
}

void finish(ucs_status_ptr_t request) {
  if (request == nullptr) {
    return;
  }
  ucs_status_t status = UCS_PTR_IS_ERR(request) ? UCS_PTR_STATUS(request) : UCS_INPROGRESS;
  while (status == UCS_INPROGRESS) {
    ucp_worker_progress(here.worker);
    status = ucp_request_check_status(request);
    if (status == UCS_INPROGRESS) {
      wait_a_little();
    }
  }
  check(status, "a message");
  ucp_request_free(request);
}

}  // namespace

extern "C" {

void alone_open(int rank, int size, int crowded, Allgather allgather) {
  here.rank = rank;
  here.size = size;
  here.crowded = crowded != 0;
  here.allgather = allgather;
  open_ucc();
  open_ucx();
}

// One more team of all ranks, whose number, from 1, they agree on.
void alone_team(int id) {
  std::vector<std::uint64_t> members(static_cast<std::size_t>(here.size));
  std::iota(members.begin(), members.end(), 0);
  ucc_team_params_t team{};
  team.mask = UCC_TEAM_PARAM_FIELD_EP_MAP | UCC_TEAM_PARAM_FIELD_ID;
  team.ep_map.type = UCC_EP_MAP_ARRAY;
  team.ep_map.ep_num = members.size();
  team.ep_map.array.map = members.data();
  team.ep_map.array.elem_size = sizeof(members[0]);
  team.id = static_cast<std::uint16_t>(id);
  create(team);
}

// Posts it, for alone_end() to wait for. Returns the seconds, as all that follow.
double alone_begin(const Collective* wanted) {
  const double start = now();
  here.begun.push_back(post(*wanted));
  return now() - start;
}

double alone_end() {
  const double start = now();
  finish_begun();
  return now() - start;
}

// Posts all of them and waits for all, so many times.
double alone_collectives(const Collective* wanted, int count, int times) {
  const double start = now();
  for (int turn = 0; turn < times; ++turn) {
    for (int i = 0; i < count; ++i) {
      here.begun.push_back(post(wanted[i]));
    }
    finish_begun();
  }
  return now() - start;
}

// All at once, or each when the one before it has ended.
double alone_messages(const Message* wanted, int count, int at_once, int times) {
  std::vector<ucs_status_ptr_t> requests(static_cast<std::size_t>(count));
  const double start = now();
  for (int turn = 0; turn < times; ++turn) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      requests[i] = begin(wanted[i]);
      if (at_once == 0) {
        finish(std::exchange(requests[i], nullptr));
      }
    }
    for (ucs_status_ptr_t request : requests) {
      finish(request);
    }
  }
  return now() - start;
}

}  // extern "C"
