// Calls that start together, and one of them that is refused.
#include <exception>
#include <optional>
#include <utility>

#include "backend/backend.h"
#include "work/errors.h"

namespace torch_ucc {

Coalescing* UccBackend::open_coalescing() const {
  Coalescing* const open = coalescings::find(home_->group);
  return open == nullptr || open->batch == nullptr ? nullptr : open;
}

void UccBackend::startCoalescing() {
  const Call call = this->call(operation::kCoalesced);
  dropCoalescing("their coalescing was not ended");
  Coalescing coalescing;
  coalescing.batch = std::make_shared<OpBatch>(membership_.team->domain(), coalesced_name_);
  coalescings::open(home_->group, std::move(coalescing));
}

UccBackend::WorkPtr UccBackend::endCoalescing() {
  refuse_forked_child("the coalescing of group '" + info_->name + "'");
  std::optional<Coalescing> ended = coalescings::close(home_->group);
  if (!ended) {
    throw_for_user(
        Status(StatusCode::invalid, "end_coalescing() of group '" + info_->name + "' was called without start_coalescing()"));
  }
  if (ended->batch == nullptr) {
    throw_for_user(ended->refusal);
  }
  Outgoing outgoing;
  outgoing.op = ended->batch->empty() ? nullptr : std::move(ended->batch);
  // Its calls may go different ways
  outgoing.parts = parts_of(operation::kCoalesced, trace::Route::none);
  outgoing.parts.seq = seq_.load(std::memory_order_relaxed);
  outgoing.parts.outputs = std::move(ended->outputs);
  outgoing.parts.fences = std::move(ended->fences);
  outgoing.effects = std::move(ended->effects);
  outgoing.deadline = deadline_of(c10d::kUnsetTimeout, Clock::now());
  outgoing.async_op = true;
  outgoing.is_collective = ended->is_collective;
  return submit(std::move(outgoing));
}

void UccBackend::dropCoalescing(const std::string& why) {
  if (std::optional<Coalescing> dropped = coalescings::close(home_->group)) {
    drop(*dropped, why);
  }
}

// Takes the sequence numbers back: another rank may have dropped its coalescing after more or fewer calls, and
// messages of later collectives have these numbers as tags. If another thread has called collectives meanwhile, one of
// their numbers is given again, but later ones agree on all ranks.
void UccBackend::drop(Coalescing& coalescing, const std::string& why) {
  seq_.fetch_sub(std::exchange(coalescing.counted, 0), std::memory_order_relaxed);
  coalescing.drop(why);
}

void UccBackend::drop_for(const std::exception& error) {
  if (Coalescing* const open = open_coalescing()) {
    const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
    const std::string why = of_torch == nullptr ? error.what() : of_torch->what_without_backtrace();
    open->refusal =
        Status(StatusCode::invalid, "the coalesced calls of group '" + info_->name +
                                        "' were dropped, and none of their data was sent: one of them was refused: " + why);
    drop(*open, "one of them was refused: " + why);
  }
}

}  // namespace torch_ucc
