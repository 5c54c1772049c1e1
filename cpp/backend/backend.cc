#include "backend/backend.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/shared_tensors.h"
#include "backend/window.h"
#include "base/forked.h"
#include "store/c10d_store.h"
#include "trace/dumper.h"
#include "work/errors.h"

namespace torch_ucc {
namespace {

using std::chrono::milliseconds;

static_assert(operation::kTable.size() <= WorkHome::kOperations);

// A WorkHome that keeps the context alive as long as a Work is.
std::shared_ptr<WorkHome> home_in(const std::shared_ptr<CommContext>& context, const GroupSpec& group) {
  struct Home {
    Home(std::shared_ptr<CommContext> owner, std::uint32_t group)
        : context(std::move(owner)), home{context->engine(), context->delivery(), group, context->settings().blocking_wait} {}
    std::shared_ptr<CommContext> context;
    WorkHome home;
  };
  const std::uint32_t number =
      trace::recorder().add_group({group.name, group.rank, group.global_ranks, false, "", {}, context->number()});
  auto owner = std::make_shared<Home>(context, number);
  return {owner, &owner->home};
}

}  // namespace

UccBackend::UccBackend(const Place& place, const Settings& settings)
    : Backend(place.group.rank, static_cast<int>(place.group.global_ranks.size())),
      spec_(place.group),
      context_(CommContext::at(place, settings)),
      membership_(context_->join(spec_, place.id)),
      info_(std::make_shared<GroupInfo>(GroupInfo{spec_.name, rank_, size_, membership_.board != nullptr,
                                                  has_levels() ? membership_.levels->layout : nullptr})),
      coalesced_name_("coalesced calls of group '" + info_->name + "' on rank " + std::to_string(rank_) + " of " +
                      std::to_string(size_)),
      home_(home_in(context_, spec_)),
      timeout_ms_(spec_.timeout.count()) {
  init();
  membership_.team->domain().set_listener([hooks = abort_hooks_, home = std::weak_ptr<WorkHome>(home_)] {
    if (const std::shared_ptr<WorkHome> alive = home.lock(); alive != nullptr && !hooks->empty()) {
      std::function<void()> job = [hooks] { hooks->run(); };
      alive->delivery.queue(job);  // this thread may hold the baton
    }
  });
}

c10::intrusive_ptr<c10d::Backend> UccBackend::split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                                    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  refuse_forked_child("splitting group '" + info_->name + "'");
  for (const int rank : ranks) {
    if (rank < 0 || rank >= size_) {
      throw_for_user(
          Status(StatusCode::invalid, "split: rank " + std::to_string(rank) + " is not a rank of group '" + info_->name + "'"));
    }
  }
  return part(std::make_shared<C10dStore>(store), opts ? opts->group_name : info_->name + ":split", ranks, opts);
}

c10::intrusive_ptr<c10d::Backend> UccBackend::shrink(const std::vector<std::int64_t>& ranks_to_exclude, int shrink_flags,
                                                     const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  refuse_forked_child("shrinking group '" + info_->name + "'");
  if (shrink_flags != 0) {
    context_->engine().fail(membership_.team->domain(),
                            Status(StatusCode::closed, "group '" + info_->name + "' was shrunk while it was in flight"));
  }
  std::string name = info_->name + ":without";
  for (const std::int64_t rank : ranks_to_exclude) {
    name += " " + std::to_string(rank);
  }
  std::vector<int> rest;
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), rank) == ranks_to_exclude.end()) {
      rest.push_back(rank);
    }
  }
  return part(spec_.store, name, rest, opts, true);
}

c10::intrusive_ptr<c10d::Backend> UccBackend::part(std::shared_ptr<KvStore> store, const std::string& name,
                                                   const std::vector<int>& ranks,
                                                   const c10::intrusive_ptr<c10d::Backend::Options>& opts, bool apart) {
  const auto mine = std::find(ranks.begin(), ranks.end(), rank_);
  if (mine == ranks.end()) {
    return nullptr;
  }
  require_same_libraries(opts, "a part of");
  // If a whole world is shrunk, torch numbers the remaining processes anew.
  const bool is_new_world = apart && spec_.global_ranks.size() == spec_.world->size;
  GroupSpec part{std::move(store),
                 name,
                 is_new_world ? std::make_shared<const World>(World{ranks.size()}) : spec_.world,
                 {},
                 static_cast<int>(mine - ranks.begin()),
                 timeout_of(opts),
                 apart};
  for (const int rank : ranks) {
    part.global_ranks.push_back(is_new_world ? static_cast<std::int64_t>(part.global_ranks.size())
                                             : spec_.global_ranks[static_cast<std::size_t>(rank)]);
  }
  return made(part);
}

c10::intrusive_ptr<c10d::Backend> UccBackend::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                    const c10::intrusive_ptr<c10d::Backend::Options>& opts, const int& rank,
                                                    const int& size) {
  refuse_forked_child("merging group '" + info_->name + "' with others");
  if (rank < 0 || rank >= size) {
    throw_for_user(Status(StatusCode::invalid, "merge of group '" + info_->name + "': rank " + std::to_string(rank) +
                                                   " is not a rank of a group of " + std::to_string(size)));
  }
  require_same_libraries(opts, "a group merged with");
  GroupSpec merged{std::make_shared<C10dStore>(store),
                   opts && !opts->group_name.empty() ? opts->group_name : info_->name + ":merged",
                   std::make_shared<const World>(World{static_cast<std::size_t>(size)}),
                   {},
                   rank,
                   timeout_of(opts)};
  merged.global_ranks.resize(merged.world->size);
  std::iota(merged.global_ranks.begin(), merged.global_ranks.end(), 0);
  return made(merged);
}

void UccBackend::require_same_libraries(const c10::intrusive_ptr<c10d::Backend::Options>& opts, const char* what) const {
  const Settings& settings = context_->settings();
  const auto* const own = dynamic_cast<const Options*>(opts.get());
  if (own != nullptr && !(own->ucc.empty() && own->ucx.empty()) &&
      (own->ucc != settings.own_ucc || own->ucx != settings.own_ucx)) {
    throw_for_user(Status(StatusCode::unsupported, std::string(what) + " group '" + info_->name +
                                                       "' uses the UCC and UCX options of that group: use new_group() for "
                                                       "other options"));
  }
}

milliseconds UccBackend::timeout_of(const c10::intrusive_ptr<c10d::Backend::Options>& opts) const {
  const bool is_set = opts && opts->timeout != c10d::kUnsetTimeout;
  return is_set ? opts->timeout : milliseconds(timeout_ms_.load());
}

c10::intrusive_ptr<UccBackend> UccBackend::made(const GroupSpec& group) const {
  const Settings& settings = context_->settings();
  return for_user([&] { return c10::make_intrusive<UccBackend>(CommContext::find_place(group, settings), settings); });
}

#if TUCC_TORCH_HAS_RECONFIGURE
c10::intrusive_ptr<c10d::Window> UccBackend::new_window(const std::optional<at::Tensor>& tensor) {
  refuse_forked_child("new_window of group '" + info_->name + "'");
  std::vector<int> everybody(static_cast<std::size_t>(size_));
  std::iota(everybody.begin(), everybody.end(), 0);
  auto group = c10::dynamic_intrusive_pointer_cast<UccBackend>(part(spec_.store, info_->name + ":window", everybody, nullptr));
  {
    const MutexLock lock(windows_mutex_);
    std::erase_if(windows_, [](const auto& each) { return each.expired(); });
    windows_.emplace_back(group);
  }
  auto window = c10::make_intrusive<UccWindow>(std::move(group));
  if (tensor) {
    window->tensor_register(*tensor, true);
  }
  return window;
}
#endif

at::Tensor UccBackend::allocateTensor(long size, at::TensorOptions options) {  // NOLINT(google-runtime-int): c10d's signature
  refuse_forked_child("allocate_tensor of group '" + info_->name + "'");
  return for_user([&] { return shared_tensors::allocate(size, options); });
}

void UccBackend::setTimeout(milliseconds timeout) { timeout_ms_.store(timeout.count()); }

c10::intrusive_ptr<c10d::Backend::Options> UccBackend::getBackendOptions() {
  return c10::make_intrusive<Options>(milliseconds(timeout_ms_.load()), context_->settings().own_ucc,
                                      context_->settings().own_ucx);
}

c10d::ErrorType UccBackend::getError() {
  const Status* const failure = this->failure();
  if (failure == nullptr) {
    return aborted_.load(std::memory_order_acquire) ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
  }
  switch (failure->code()) {
    case StatusCode::timeout:
      return c10d::ErrorType::TIMEOUT;
    case StatusCode::peer_gone:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void UccBackend::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  if (hook_ != nullptr) {
    throw_for_user(Status(StatusCode::invalid, "group '" + info_->name + "' already has a completion hook"));
  }
  onCompletionHook_ = std::move(hook);
  hook_ = std::make_shared<CompletionHook>(onCompletionHook_);
}

void UccBackend::waitForPendingWorks() {
  refuse_forked_child("waiting for the operations of group '" + info_->name + "'");
  const Deadline deadline = Deadline::after(milliseconds(timeout_ms_.load()));
  const bool drained = context_->engine().drain(membership_.team->domain(), deadline) || failure() != nullptr;
  if (!drained || (hook_ != nullptr && !hook_->wait(deadline))) {
    throw_for_user(Status(StatusCode::timeout, "operations of group '" + info_->name + "' did not end within its timeout"));
  }
}

void UccBackend::shutdown() { close(context_->settings().close_timeout); }

void UccBackend::abort() {
  trace::request_dump("abort");  // of what is in flight
  trace::flush_dump();
  abort_hooks_->run();
  aborted_.store(true, std::memory_order_release);
  close(milliseconds(0));
  if (in_forked_child()) {
    return;
  }
  // Another thread may be closing the group and its windows, and take its time
  for (const auto& window : windows()) {
    window->abort();
  }
  context_->give_up(membership_, "group '" + info_->name + "' was aborted");
}

void UccBackend::give_up(const std::string& why) {
  if (!closed_.load(std::memory_order_acquire) && !in_forked_child()) {
    context_->give_up(membership_, why);
  }
}

void UccBackend::leave(bool all_leave) { close(all_leave ? context_->settings().close_timeout : milliseconds(0)); }

// The groups of the windows that live.
std::vector<c10::intrusive_ptr<UccBackend>> UccBackend::windows() {
  std::vector<c10::intrusive_ptr<UccBackend>> found;
  const MutexLock lock(windows_mutex_);
  for (const auto& each : windows_) {
    if (auto group = each.lock()) {
      found.push_back(std::move(group));
    }
  }
  return found;
}

// A forked child has nothing to close: everything belongs to its parent.
void UccBackend::close(milliseconds drain) {
  if (!closed_.exchange(true, std::memory_order_acq_rel) && !in_forked_child()) {
    const Deadline deadline = Deadline::after(drain);
    const auto left = [&] { return std::chrono::ceil<milliseconds>(deadline.left()); };
    for (const auto& window : windows()) {
      window->close(left() / 2);  // so that time is left for the others and for this group
    }
    context_->leave(membership_, info_->name, left());
    trace::recorder().close_group(home_->group);
  }
}

}  // namespace torch_ucc
