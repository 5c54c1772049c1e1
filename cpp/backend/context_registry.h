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
  // Removes a context that begins to close.
  void remove(const std::shared_ptr<CommContext>& context);
  // Keeps a context for ever that could not be closed, because UCC may still touch what it owns.
  void keep(std::shared_ptr<CommContext> context);

  // The open contexts, oldest first.
  std::vector<std::shared_ptr<CommContext>> open() const;
  // The latest open context that serves the group and was made with the own options `own`. If there
  // is none and `own` is empty, the latest that serves the group. Else null.
  std::shared_ptr<CommContext> open_for(const GroupSpec& group, const NamedValues& own) const;

 private:
  mutable Mutex mutex_;  // several threads may create and close groups
  std::vector<std::shared_ptr<CommContext>> open_ TUCC_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<CommContext>> kept_ TUCC_GUARDED_BY(mutex_);
};

}  // namespace torch_ucc
