// Finds the context on which a group is made; the members agree on it.
#include <charconv>
#include <system_error>
#include <utility>

#include "backend/comm_context.h"
#include "backend/context_registry.h"
#include "base/forked.h"
#include "base/scarcity.h"
#include "messages/messages.h"

namespace torch_ucc {
namespace {

// The store belongs to the group, unless the group is `apart`: then it is the store of the group it
// derives from, and the name keeps the keys apart. Otherwise the name is not used, because the
// names of a default group differ between ranks if an earlier default group failed on some of them.
std::shared_ptr<FreshPrefix> fresh_prefix(const GroupSpec& group) {
  return std::make_shared<FreshPrefix>(group.apart ? group.name : "", group.rank, static_cast<int>(group.global_ranks.size()));
}

// Sends `text` to each member of a channel of notes.
class Notes final : public Messages {
 public:
  Notes(std::shared_ptr<Channel> channel, const std::vector<Message>& messages, std::shared_ptr<const std::string> text)
      : Messages(std::move(channel), Space::collective, 0, messages), text_(std::move(text)) {}
  std::string describe() const override { return "notifying the members of a group that it cannot be created"; }

 private:
  const std::shared_ptr<const std::string> text_;  // until the messages have left
};

}  // namespace

Place CommContext::find_place(const GroupSpec& group, const Settings& settings) {
  mark_forked_children();
  if (in_forked_child()) {
    throw StatusError(Status(StatusCode::closed,
                             "group '" + group.name +
                                 "' cannot be created: this process was forked from a process that used ucc, which UCX does "
                                 "not support. Start processes with the spawn or forkserver method."));
  }
  const std::shared_ptr<CommContext> common = group.apart ? nullptr : ContextRegistry::of_process().open_for(group, {});
  if (common == nullptr) {
    return {group, nullptr, kFirstGroup, fresh_prefix(group)};
  }
  const NamedValues own = settings.own();
  const std::shared_ptr<CommContext> wanted = own.empty() ? common : ContextRegistry::of_process().open_for(group, own);
  if (wanted != nullptr && wanted->engine_.failed()) {
    throw StatusError(Status(StatusCode::closed, "group '" + group.name + "' cannot be created on a context that has failed (" +
                                                     wanted->engine_.failure().message() +
                                                     "). Call destroy_process_group() and then init_process_group()."));
  }
  Place place = common->agree_on_place(group, wanted, own);
  if (place.context == nullptr) {
    place.prefix = fresh_prefix(group);
  }
  return place;
}

std::shared_ptr<CommContext> CommContext::at(const Place& place, const Settings& settings) {
  if (place.context != nullptr) {
    return place.context;
  }
  const std::string what = "group '" + place.group.name + "' cannot be created: ";
  auto context = explaining_scarcity(what, [&] {
    if (!has_descriptors_to_start()) {
      throw StatusError(
          Status(StatusCode::transport, what + "this process may not open enough file descriptors for UCX and UCC"));
    }
    return std::make_shared<CommContext>(place.group, *place.prefix, settings);
  });
  ContextRegistry::of_process().add(context);
  return context;
}

Place CommContext::agree_on_place(const GroupSpec& group, const std::shared_ptr<CommContext>& wanted, const NamedValues& own) {
  int times = 0;
  {
    const MutexLock lock(mutex_);
    times = times_created_[group.name]++;
  }
  const std::vector<std::uint64_t> members = roster_.positions(group.global_ranks);
  const std::string key = "torch_ucc/team/" + roster_.record(0).nonce + "/" + group.name + "/" + std::to_string(times);
  std::int64_t id = kFirstGroup;  // on a context that is to be made
  NamedValues decided = own;
  if (group.rank == 0) {
    id += wanted == nullptr ? 0 : wanted->numbers_of_group() * wanted->store_->add(wanted->key_prefix_ + "/teams", 1);
    NamedValues said{{"id", std::to_string(id)}};
    said.insert(said.end(), own.begin(), own.end());
    group.store->set(key, encode_values(said));
  } else {
    const NamedValues said =
        decode_values(get_by(*group.store, key, Deadline::after(group.timeout),
                             "rank 0 of group '" + group.name + "' to create it", roster_.unless_gone(group.name, members)));
    id = number_in(said.empty() ? "" : said.front().second, "the id of group '" + group.name + "'");
    decided.assign(said.begin() + 1, said.end());
  }
  const std::int64_t numbers = wanted == nullptr ? 1 : wanted->numbers_of_group();
  if (id < kFirstGroup || id + numbers - 1 > UccTeam::kMaxId) {
    throw StatusError(Status(StatusCode::transport, "group '" + group.name + "' cannot be created: UCC supports " +
                                                        std::to_string(UccTeam::kMaxId / numbers) + " groups in a job, and " +
                                                        std::to_string(id / numbers) + " were created"));
  }
  Place place{group, wanted, static_cast<std::uint16_t>(id)};
  if (decided == own) {
    return place;
  }
  if (id == kFirstGroup) {
    place.context = nullptr;  // the members that make a context compare their records
    return place;
  }
  PeerRecord first = roster_.record(members.front());
  first.agreed = decided;
  PeerRecord mine = roster_.record(roster_.self());
  mine.agreed = own;
  const Status reason = difference(group.name, first, 0, mine, group.rank);
  const std::shared_ptr<CommContext> context = ContextRegistry::of_process().open_for(group, decided);
  // One rank sends notes, however many differ
  if (context != nullptr && group.store->add(key + "/refused", 1) == 1) {
    context->refuse(group, place.id, reason);
  }
  throw StatusError(reason);
}

// Sends a note to the other members of the group, so that the group fails there as well.
void CommContext::refuse(const GroupSpec& group, std::uint16_t id, const Status& reason) {
  const auto note = std::make_shared<std::string>((std::to_string(id) + ' ' + reason.message()).substr(0, TagLayout::kMaxNote));
  std::vector<ChannelMember> members;
  std::vector<Message> messages;
  for (const std::uint64_t position : roster_.positions(group.global_ranks)) {
    if (position != roster_.self()) {
      messages.push_back({Message::Kind::send, static_cast<int>(members.size()), note->data(), note->size()});
      members.push_back({position, roster_.bell_of(position)});
    }
  }
  const auto channel =
      std::make_shared<Channel>(carrier_for(control_board_.get()), TagLayout::kNotes, std::move(members), 0, control_domain_);
  engine_.post(std::make_shared<Notes>(channel, messages, note), Follow::leaves);
}

// Called with the baton.
void CommContext::on_note(const std::string& note) {
  std::uint16_t id = 0;
  const char* const end = note.data() + note.size();
  const auto [after, error] = std::from_chars(note.data(), end, id);
  if (error != std::errc() || after == end) {
    return;
  }
  const Status reason(StatusCode::closed, std::string(after + 1, end));
  std::shared_ptr<FailureDomain> domain;
  {
    const MutexLock lock(mutex_);
    refused_.emplace(id, reason);
    for (const auto& [key, open] : open_groups_) {
      if (open.id == id) {
        domain = open.domain;
      }
    }
  }
  if (domain != nullptr) {
    engine_.fail(*domain, reason);
  }
}

}  // namespace torch_ucc
