#include "backend/coalescing.h"

#include <algorithm>
#include <utility>

namespace torch_ucc {
namespace {

// A thread has few open at a time.
thread_local std::vector<std::pair<std::uint32_t, Coalescing>> of_this_thread;

auto position_of(std::uint32_t group) {
  return std::find_if(of_this_thread.begin(), of_this_thread.end(), [&](const auto& each) { return each.first == group; });
}

}  // namespace

void Coalescing::drop(const std::string& why) {
  if (batch != nullptr) {
    batch->record_end(StatusCode::closed);
    batch->completion().complete(
        Status(StatusCode::closed, batch->describe() + " were dropped, and none of their data was sent: " + why));
    batch = nullptr;
  }
}

namespace coalescings {

Coalescing* find(std::uint32_t group) {
  if (of_this_thread.empty()) {
    return nullptr;
  }
  const auto at = position_of(group);
  return at == of_this_thread.end() ? nullptr : &at->second;
}

void open(std::uint32_t group, Coalescing coalescing) {
  if (std::optional<Coalescing> before = close(group)) {
    before->drop("their coalescing was not ended");
  }
  of_this_thread.emplace_back(group, std::move(coalescing));
}

std::optional<Coalescing> close(std::uint32_t group) {
  const auto at = position_of(group);
  if (at == of_this_thread.end()) {
    return std::nullopt;
  }
  Coalescing closed = std::move(at->second);
  of_this_thread.erase(at);
  return closed;
}

}  // namespace coalescings

}  // namespace torch_ucc
