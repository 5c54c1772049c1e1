#include "backend/vote.h"

#include <string>
#include <utility>

#include "ucc/coll_args.h"
#include "ucc/collective.h"

namespace torch_ucc {
namespace {

// An all_reduce that replaces each member's number by the least of all.
class Vote final : public Collective {
 public:
  Vote(std::shared_ptr<UccTeam> team, std::shared_ptr<std::int32_t> number, const char* what)
      : Collective(std::move(team), allreduce_in_place_args(number.get(), 1, UCC_DT_INT32, UCC_OP_MIN, UCC_MEMORY_TYPE_HOST), {}),
        number_(std::move(number)),
        what_(what) {}
  std::string describe() const override { return std::string("agreeing on ") + what_; }

 private:
  const std::shared_ptr<std::int32_t> number_;  // until the network is done with it
  const char* const what_;
};

}  // namespace

std::int32_t least_of_all(Engine& engine, const std::shared_ptr<UccTeam>& everybody, std::int32_t mine, const char* what,
                          Deadline deadline) {
  const auto number = std::make_shared<std::int32_t>(mine);
  const auto vote = std::make_shared<Vote>(everybody, number, what);
  vote->set_deadline(deadline);
  throw_if_error(engine.run(vote));
  return *number;
}

}  // namespace torch_ucc
