#include "backend/reconfigurable.h"

#if TUCC_TORCH_HAS_RECONFIGURE

#include <algorithm>
#include <utility>
#include <variant>

#include "backend/shared_tensors.h"
#include "base/random.h"
#include "store/c10d_store.h"
#include "work/ended_work.h"
#include "work/errors.h"

namespace torch_ucc {
namespace {

using std::chrono::milliseconds;

constexpr const char* kPrefix = "torch_ucc:";

// Differs between all objects of all processes.
std::string new_handle(const std::string& group) { return kPrefix + std::to_string(random_number()) + ":" + group; }

std::string joined(const std::vector<std::string>& handles) {
  std::string text;
  for (const std::string& handle : handles) {
    text += (text.empty() ? "" : ", ") + handle;
  }
  return text;
}

}  // namespace

Reconfigurable::Reconfigurable(StorePtr store, int rank, int size, std::string name, milliseconds timeout, Make make)
    : Backend(rank, size),
      store_(std::move(store)),
      name_(std::move(name)),
      handle_(new_handle(name_)),
      make_(std::move(make)),
      timeout_(timeout) {
  init();
}

Reconfigurable::Member Reconfigurable::current() const {
  const MutexLock lock(mutex_);
  return current_;
}

Reconfigurable::Member Reconfigurable::now() const {
  const MutexLock lock(mutex_);
  if (current_ != nullptr) {
    return current_;
  }
  const char* why = " has no members yet: call reconfigure() first";
  if (ended_) {
    why = " was shut down";
  } else if (running_) {
    why = " is being reconfigured by another thread";
  } else if (failed_) {
    why = " has no members, since its last reconfigure() failed: call reconfigure() again, with another uuid";
  }
  throw_for_user(Status(StatusCode::closed, describe() + why));
}

std::vector<std::string> Reconfigurable::checked(const c10d::ReconfigureOptions& opts) const {
  const auto refuse = [&](const std::string& why) {
    throw StatusError(Status(StatusCode::invalid, "reconfigure of " + describe() + ": " + why));
  };
  std::vector<std::string> handles;
  std::visit([&](const auto& given) { handles.assign(given.begin(), given.end()); }, opts.handles);
  if (std::holds_alternative<std::unordered_set<std::string>>(opts.handles)) {
    std::sort(handles.begin(), handles.end());
  }
  if (handles.empty()) {
    refuse("there must be at least one handle, that of this process");
  }
  for (const std::string& handle : handles) {
    if (handle.rfind(kPrefix, 0) != 0) {
      refuse("'" + handle + "' is not a handle of a ucc group: pass on what get_reconfigure_handle() returns");
    }
    if (std::count(handles.begin(), handles.end(), handle) != 1) {
      refuse("the handle '" + handle + "' is given twice: the members must differ");
    }
  }
  if (std::find(handles.begin(), handles.end(), handle_) == handles.end()) {
    refuse("the handle of this process, '" + handle_ + "', is not among those of the new members: " + joined(handles));
  }
  if (opts.timeout && opts.timeout->count() <= 0) {
    refuse("the timeout must be above 0");
  }
  const MutexLock lock(mutex_);
  if (ended_) {
    throw StatusError(Status(StatusCode::closed, "reconfigure of " + describe() + ": it was shut down"));
  }
  if (used_.count(opts.uuid) != 0) {
    // A RuntimeError, as with torch's own backends
    throw StatusError(Status(StatusCode::closed, "reconfigure of " + describe() + ": the uuid " + std::to_string(opts.uuid) +
                                                     " was already used: give each reconfigure() another one"));
  }
  return handles;
}

void Reconfigurable::agree(KvStore& store, const std::vector<std::string>& handles, const std::string& place,
                           Deadline deadline) const {
  const std::string key = place + handles.front();
  const std::string mine = joined(handles);
  if (handles.front() == handle_) {
    store.set(key, mine);
    return;
  }
  const std::string said = get_by(store, key, deadline, "the first member, " + handles.front() + ", to call reconfigure() too");
  if (said != mine) {
    throw StatusError(Status(StatusCode::closed, "reconfigure of " + describe() + ": this process was given the members " + mine +
                                                     ", but the first of them was given " + said));
  }
}

Reconfigurable::WorkPtr Reconfigurable::reconfigure(const c10d::ReconfigureOptions& opts) {
  refuse_forked_child("reconfigure of " + describe());
  const MutexLock one_at_a_time(reconfiguring_);
  return for_user([&] {
    const std::vector<std::string> handles = checked(opts);
    Members members{nullptr, static_cast<int>(std::find(handles.begin(), handles.end(), handle_) - handles.begin()),
                    static_cast<int>(handles.size()), name_ + "#" + std::to_string(opts.uuid), milliseconds(0)};
    // Closes the former group, and what was made in vain, on every way out.
    struct Leaving {
      ~Leaving() {
        if (group != nullptr) {
          group->leave(waits);
        }
      }
      Member group;
      bool waits = false;
    } former, made;
    struct Running {
      ~Running() {
        const MutexLock lock(owner.mutex_);
        owner.running_ = false;
      }
      Reconfigurable& owner;
    } running{*this};
    std::vector<std::string> former_handles;
    {
      const MutexLock lock(mutex_);
      used_.insert(opts.uuid);
      running_ = true;
      failed_ = true;
      former.group = leaving_ = std::exchange(current_, nullptr);
      former_handles = std::exchange(members_, {});
      members.timeout = opts.timeout.value_or(timeout_);
    }
    if (former.group != nullptr) {
      former.group->give_up("the group was reconfigured while it was in flight");
      const MutexLock lock(mutex_);
      leaving_ = nullptr;
    }
    const Deadline deadline = Deadline::after(members.timeout);
    const std::string place = "torch_ucc/reconfigure/" + std::to_string(opts.uuid) + "/";
    C10dStore common(store_);
    agree(common, handles, place, deadline);
    members.store = c10::make_intrusive<c10d::PrefixStore>(place + "of " + handles.front() + "/", store_);
    members.timeout = std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline.left()));
    made.group = make_(members);
    // If all former members stay, all of them close the former group now. Otherwise this rank would
    // wait for ranks that do not close it.
    former.waits = std::all_of(former_handles.begin(), former_handles.end(), [&](const std::string& each) {
      return std::find(handles.begin(), handles.end(), each) != handles.end();
    });
    const MutexLock lock(mutex_);
    if (ended_) {
      throw StatusError(Status(StatusCode::closed, "reconfigure of " + describe() + ": it was shut down meanwhile"));
    }
    made.group->setTimeout(timeout_);
    for (const auto& [id, hook] : abort_hooks_) {
      made.group->registerAbortHook(id, [hook = hook] { (*hook)(); });
    }
    current_ = std::move(made.group);
    members_ = handles;
    failed_ = false;
    rank_ = members.rank;
    size_ = members.size;
    return ended_work();
  });
}

at::Tensor Reconfigurable::allocateTensor(long size, at::TensorOptions options) {  // NOLINT(google-runtime-int): c10d's signature
  refuse_forked_child("allocate_tensor of " + describe());
  return for_user([&] { return shared_tensors::allocate(size, options); });
}

void Reconfigurable::setTimeout(milliseconds timeout) {
  const MutexLock lock(mutex_);
  timeout_ = timeout;
  if (current_ != nullptr) {
    current_->setTimeout(timeout);
  }
}

void Reconfigurable::registerAbortHook(std::int64_t hook_id, c10d::AbortHook hook) {
  const auto shared = std::make_shared<const c10d::AbortHook>(std::move(hook));
  std::shared_ptr<const c10d::AbortHook> former;
  const MutexLock lock(mutex_);
  if (current_ != nullptr) {
    current_->registerAbortHook(hook_id, [shared] { (*shared)(); });
  }
  former = std::exchange(abort_hooks_[hook_id], shared);
}

void Reconfigurable::unregisterAbortHook(std::int64_t hook_id) {
  decltype(abort_hooks_)::node_type former;
  const MutexLock lock(mutex_);
  if (current_ != nullptr) {
    current_->unregisterAbortHook(hook_id);
  }
  former = abort_hooks_.extract(hook_id);
}

c10d::ErrorType Reconfigurable::getError() {
  const MutexLock lock(mutex_);
  if (current_ != nullptr) {
    return current_->getError();
  }
  return failed_ || ended_ ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}

void Reconfigurable::shutdown() {
  Member last;
  {
    const MutexLock lock(mutex_);
    ended_ = true;
    last = std::exchange(current_, nullptr);
    leaving_ = last != nullptr ? last : leaving_;
  }
  if (last != nullptr) {
    last->shutdown();
    const MutexLock lock(mutex_);
    leaving_ = nullptr;
  }
}

void Reconfigurable::abort() {
  Member group;
  {
    const MutexLock lock(mutex_);
    group = current_ != nullptr ? current_ : leaving_;
  }
  if (group != nullptr) {
    group->abort();
  }
}

}  // namespace torch_ucc

#endif  // TUCC_TORCH_HAS_RECONFIGURE
