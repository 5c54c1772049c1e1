#include "store/c10d_store.h"

#include <exception>
#include <utility>

#include "base/interrupt.h"
#include "base/status.h"

namespace torch_ucc {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::string text_of(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

template <typename Function>
auto calling_store(const char* what, Function&& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::exception& error) {
    if (const IsInterrupt check = is_interrupt.load(std::memory_order_acquire); check != nullptr && check(error)) {
      throw;
    }
    throw StatusError(Status(StatusCode::transport, std::string("the job's store failed on ") + what + ": " + error.what()));
  }
}

}  // namespace

C10dStore::C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

void C10dStore::set(const std::string& key, const std::string& value) {
  calling_store("set", [&] { store_->set(key, Bytes(value.begin(), value.end())); });
}

std::optional<std::string> C10dStore::get(const std::string& key) {
  return calling_store("get", [&]() -> std::optional<std::string> {
    if (!store_->check({key})) {
      return std::nullopt;
    }
    return text_of(store_->get(key));
  });
}

std::vector<std::string> C10dStore::get_all(const std::vector<std::string>& keys) {
  return calling_store("get", [&] {
    std::vector<std::string> values;
    values.reserve(keys.size());
    if (store_->hasExtendedApi()) {
      for (const Bytes& value : store_->multiGet(keys)) {
        values.push_back(text_of(value));
      }
    } else {
      for (const std::string& key : keys) {
        values.push_back(text_of(store_->get(key)));
      }
    }
    return values;
  });
}

std::int64_t C10dStore::add(const std::string& key, std::int64_t amount) {
  return calling_store("add", [&] { return store_->add(key, amount); });
}

}  // namespace torch_ucc
