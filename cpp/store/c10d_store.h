// Adapts c10d's Store to KvStore of bootstrap.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/kv_store.h"
#include "compat/torch_compat.h"

namespace torch_ucc {

// An exception of the store becomes a StatusError (transport), except an interrupt (see
// base/interrupt.h), which is thrown on. As thread-safe as the store.
class C10dStore final : public KvStore {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store);

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key) override;
  std::vector<std::string> get_all(const std::vector<std::string>& keys) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace torch_ucc
