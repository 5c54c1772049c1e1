// The contexts of the process.
#pragma once

#include <memory>
#include <vector>

#include "backend/place.h"
#include "base/settings.h"
#include "base/thread_annotations.h"

namespace torch_ucc {

// Any thread: groups may be created and closed from several.
class ContextRegistry {
 public:
  static ContextRegistry& of_process();

  void add(std::shared_ptr<CommContext> context);
  // It closes.
  void remove(const std::shared_ptr<CommContext>& context);
  // It could not be closed: UCC may still touch what it owns, so it is kept for ever.
  void keep(std::shared_ptr<CommContext> context);

  // Oldest first.
  std::vector<std::shared_ptr<CommContext>> open() const;
  // The latest that serves the group and was made with options of its own like `own`, or null;
  // without any also with others.
  std::shared_ptr<CommContext> open_for(const GroupSpec& group, const NamedValues& own) const;

 private:
  mutable Mutex mutex_;  // groups are created and closed by callers of their own
  std::vector<std::shared_ptr<CommContext>> open_ TUCC_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<CommContext>> kept_ TUCC_GUARDED_BY(mutex_);
};

}  // namespace torch_ucc
