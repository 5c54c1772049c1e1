#include "backend/context_registry.h"

#include <utility>

#include "backend/comm_context.h"

namespace torch_ucc {

ContextRegistry& ContextRegistry::of_process() {
  // Never destroyed: engine threads may outlive static destruction
  static auto* instance = new ContextRegistry();
  return *instance;
}

void ContextRegistry::add(std::shared_ptr<CommContext> context) {
  const MutexLock lock(mutex_);
  open_.push_back(std::move(context));
}

void ContextRegistry::remove(const std::shared_ptr<CommContext>& context) {
  const MutexLock lock(mutex_);
  std::erase(open_, context);
}

void ContextRegistry::keep(std::shared_ptr<CommContext> context) {
  const MutexLock lock(mutex_);
  kept_.push_back(std::move(context));
}

std::vector<std::shared_ptr<CommContext>> ContextRegistry::open() const {
  const MutexLock lock(mutex_);
  return open_;
}

std::shared_ptr<CommContext> ContextRegistry::open_for(const GroupSpec& group, const NamedValues& own) const {
  const MutexLock lock(mutex_);
  std::shared_ptr<CommContext> alike;
  std::shared_ptr<CommContext> other;
  for (const std::shared_ptr<CommContext>& context : open_) {
    if (context->serves(group)) {
      (context->settings().own() == own ? alike : other) = context;  // the latest stays
    }
  }
  return alike != nullptr || !own.empty() ? alike : other;
}

}  // namespace torch_ucc
