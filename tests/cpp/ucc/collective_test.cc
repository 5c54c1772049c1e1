// One collective, whole or in pieces, against functions of UCC that only write down what they were
// told.
#include "ucc/collective.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "fakes/fake_ucc.h"
#include "fakes/limits.h"
#include "fakes/rig.h"
#include "ucc/error_log.h"
#include "ucc/memory.h"

namespace torch_ucc {
namespace {

class Probe final : public Collective {
 public:
  using Collective::Collective;
  std::string describe() const override { return "probe"; }
};

constexpr std::size_t kElements = 10;
const Pieces kWhole{.total = kElements, .element_size = sizeof(float)};
// 4, 4 and 2
const Pieces kOfFour{.total = kElements, .count = 4, .element_size = sizeof(float), .window = 2};

class CollectiveTest : public testing::Test {
 protected:
  CollectiveTest() {
    ucc = {};
    with_baton([this](LoopToken& token) { EXPECT_EQ(team_->create_post(token, context_), UCC_OK); });
  }

  void with_baton(const std::function<void(LoopToken&)>& body) { ASSERT_TRUE(rig_.engine.with_baton(hard_limit(), body)); }

  // Two sides, of which either may be left out.
  ucc_coll_args_t args(float* source, float* destination) const {
    ucc_coll_args_t args{};
    args.coll_type = UCC_COLL_TYPE_ALLREDUCE;
    args.src.info.buffer = source;
    args.src.info.count = source != nullptr ? kElements : 0;
    args.dst.info.buffer = destination;
    args.dst.info.count = destination != nullptr ? kElements : 0;
    return args;
  }
  std::shared_ptr<Probe> probe(Pieces pieces) { return std::make_shared<Probe>(team_, args(&source_, &destination_), pieces); }

  Status start(Probe& op) {
    Status status;
    with_baton([&](LoopToken& token) { status = op.start(token); });
    return status;
  }
  Op::State poll(Probe& op) {
    Op::State state{};
    with_baton([&](LoopToken& token) { state = op.poll(token); });
    return state;
  }

  float source_ = 0;       // only their addresses matter
  float destination_ = 0;  // as above
  const Bell bell_;
  Rig rig_;
  UccContext context_;
  const std::shared_ptr<FailureDomain> domain_ = std::make_shared<FailureDomain>("group");
  const std::shared_ptr<UccTeam> team_ =
      std::make_shared<UccTeam>(5, std::vector<std::uint64_t>{0, 1}, 0, Bells{{&bell_}, true}, domain_);
};

using enum Op::State;

void expect_side(const ucc_coll_buffer_info_t& side, const float* buffer, std::size_t first, std::size_t count) {
  EXPECT_EQ(side.buffer, reinterpret_cast<const char*>(buffer) + first * sizeof(float));
  EXPECT_EQ(side.count, count);
}

// --- whole and in pieces

TEST_F(CollectiveTest, GoesWhole) {
  const auto op = probe(kWhole);
  ASSERT_TRUE(start(*op).ok());
  ASSERT_EQ(ucc.posted, 1U);
  expect_side(ucc.initialised[0].src.info, &source_, 0, kElements);
  expect_side(ucc.initialised[0].dst.info, &destination_, 0, kElements);
  EXPECT_EQ(poll(*op), in_flight);
  ucc.end(0);
  EXPECT_EQ(poll(*op), ended);
  EXPECT_TRUE(op->transport_status().ok());
  EXPECT_EQ(ucc.finalised, (std::vector<std::size_t>{0}));
}

TEST_F(CollectiveTest, GoesInPiecesOfBothItsSidesThatMakeUpTheWhole) {
  const auto op = probe(kOfFour);
  ASSERT_TRUE(start(*op).ok());
  for (std::size_t piece = 0; piece < 3; ++piece) {
    EXPECT_EQ(poll(*op), in_flight);
    ucc.end(piece);
    EXPECT_EQ(poll(*op), piece == 2 ? ended : advanced);
  }
  ASSERT_EQ(ucc.initialised.size(), 3U);
  for (std::size_t piece = 0; piece < 3; ++piece) {
    expect_side(ucc.initialised[piece].src.info, &source_, 4 * piece, piece == 2 ? 2 : 4);
    expect_side(ucc.initialised[piece].dst.info, &destination_, 4 * piece, piece == 2 ? 2 : 4);
  }
  EXPECT_EQ(ucc.finalised, (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_TRUE(op->transport_status().ok());
}

// Nobody asks UCC for progress while nothing is counted.
TEST_F(CollectiveTest, TheContextCountsPiecesThatArePosted) {
  const auto counted = [this] {
    std::size_t outstanding = 0;
    with_baton([&](LoopToken& token) { outstanding = context_.outstanding(token); });
    return outstanding;
  };
  const auto op = probe(kOfFour);
  EXPECT_EQ(counted(), 0U);
  ASSERT_TRUE(start(*op).ok());
  EXPECT_EQ(counted(), 2U);  // the window
  ucc.end(0);
  ucc.end(1);
  EXPECT_EQ(poll(*op), advanced);
  EXPECT_EQ(counted(), 1U);
  ucc.end(2);
  EXPECT_EQ(poll(*op), ended);
  EXPECT_EQ(counted(), 0U);
}

TEST_F(CollectiveTest, TheContextCountsATeamThatIsBeingCreated) {
  const auto outstanding = [this](LoopToken& token) { return context_.outstanding(token); };
  CreateTeam creation(std::make_shared<UccTeam>(6, std::vector<std::uint64_t>{0, 1}, 0, Bells{}, domain_), context_, "another");
  with_baton([&](LoopToken& token) {
    ucc.test_says = UCC_INPROGRESS;
    ASSERT_TRUE(creation.start(token).ok());
    EXPECT_EQ(creation.poll(token), in_flight);
    EXPECT_EQ(outstanding(token), 1U);
    ucc.test_says = UCC_OK;
    EXPECT_EQ(creation.poll(token), ended);
    EXPECT_EQ(outstanding(token), 0U);
  });
}

TEST_F(CollectiveTest, OfASideThatIsNotThereThereAreNoPieces) {
  for (const bool sends : {false, true}) {
    ucc = {};
    Probe op(team_, sends ? args(&source_, nullptr) : args(nullptr, &destination_), kOfFour);
    ASSERT_TRUE(start(op).ok());
    ucc.end(0);
    EXPECT_EQ(poll(op), advanced);
    ASSERT_EQ(ucc.initialised.size(), 3U);
    const ucc_coll_args_t& last = ucc.initialised[2];
    expect_side(sends ? last.src.info : last.dst.info, sends ? &source_ : &destination_, 8, 2);
    expect_side(sends ? last.dst.info : last.src.info, nullptr, 0, 0);
  }
}

Part part_of(const std::array<float, kElements>& values) { return {const_cast<float*>(values.data()), sizeof(values)}; }

// Three ranks' parts, which need not lie together.
struct Parts {
  std::array<std::array<float, kElements>, 3> all{};

  Parts() {
    for (std::size_t part = 0; part < all.size(); ++part) {
      std::iota(all[part].begin(), all[part].end(), static_cast<float>(10 * part));
    }
  }
};

TEST_F(CollectiveTest, APieceIsSentOfTheSharesOfAllParts) {
  const Parts parts;
  Pieces pieces = kOfFour;
  for (const auto& part : parts.all) {
    pieces.sources.push_back(part_of(part));
  }
  Probe op(team_, args(&source_, &destination_), pieces);
  ASSERT_TRUE(start(op).ok());
  const auto expect_piece = [](std::size_t piece, const std::vector<float>& expected) {
    const ucc_coll_buffer_info_t& side = ucc.initialised.at(piece).src.info;
    const auto* begin = static_cast<const float*>(side.buffer);
    EXPECT_EQ(std::vector<float>(begin, begin + side.count), expected);
  };
  expect_piece(0, {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23});
  expect_piece(1, {4, 5, 6, 7, 14, 15, 16, 17, 24, 25, 26, 27});
  ucc.end(0);
  EXPECT_EQ(poll(op), advanced);
  expect_piece(1, {4, 5, 6, 7, 14, 15, 16, 17, 24, 25, 26, 27});  // it is still on its way
  expect_piece(2, {8, 9, 18, 19, 28, 29});
  expect_side(ucc.initialised[2].dst.info, &destination_, 8, 2);
}

TEST_F(CollectiveTest, APieceThatCameIsSharedOutToAllParts) {
  const Parts expected;
  Parts parts;
  Pieces pieces = kOfFour;
  for (auto& part : parts.all) {
    part.fill(-1);
    pieces.destinations.push_back(part_of(part));
  }
  Probe op(team_, args(&source_, &destination_), pieces);
  ASSERT_TRUE(start(op).ok());
  for (std::size_t piece = 0; piece < 3; ++piece) {
    expect_side(ucc.initialised.at(piece).src.info, &source_, 4 * piece, piece == 2 ? 2 : 4);
    const ucc_coll_buffer_info_t& side = ucc.initialised.at(piece).dst.info;
    const std::size_t share = piece == 2 ? 2 : 4;
    ASSERT_EQ(side.count, 3 * share);
    for (std::size_t i = 0; i < side.count; ++i) {
      static_cast<float*>(side.buffer)[i] = static_cast<float>(10 * (i / share) + 4 * piece + i % share);
    }
    EXPECT_EQ(parts.all[0][4 * piece], -1);
    ucc.end(piece);
    EXPECT_EQ(poll(op), piece == 2 ? ended : advanced);
    EXPECT_EQ(parts.all[2][4 * piece], expected.all[2][4 * piece]);
  }
  EXPECT_EQ(parts.all, expected.all);
}

// --- memory of the caller

// Ranks' values and what UCC is told of them, whole or in pieces.
class CallersMemory : public CollectiveTest {
 protected:
  using Values = std::array<float, kElements>;

  static Values counted_from(float first) {
    Values values{};
    std::iota(values.begin(), values.end(), first);
    return values;
  }
  static std::vector<float> seen(const ucc_coll_buffer_info_t& side) {
    const auto* const begin = static_cast<const float*>(side.buffer);
    return {begin, begin + side.count};
  }
  // UCC doubles every element of a piece, in place, and ends it.
  static void doubles(std::size_t piece) {
    const ucc_coll_buffer_info_t& side = ucc.initialised.at(piece).dst.info;
    auto* const begin = static_cast<float*>(side.buffer);
    std::transform(begin, begin + side.count, begin, [](float value) { return 2 * value; });
    ucc.end(piece);
  }
  std::shared_ptr<Probe> in_place(Pieces pieces) {
    pieces.sources = pieces.destinations = {part_of(values_)};
    pieces.in_place = true;
    return std::make_shared<Probe>(team_, args(values_.data(), values_.data()), pieces);
  }
  static bool is_within(const void* address, const Values& values) {
    return address >= static_cast<const void*>(values.data()) && address < static_cast<const void*>(values.data() + kElements);
  }

  Values values_ = counted_from(1);
};

TEST_F(CallersMemory, IsNeverSeenByUcc) {
  for (const Pieces& pieces : {kWhole, kOfFour}) {
    ucc = {};
    values_ = counted_from(1);
    const auto op = in_place(pieces);
    ASSERT_TRUE(start(*op).ok());
    for (std::size_t piece = 0; piece < pieces.number(); ++piece) {
      const ucc_coll_args_t& told = ucc.initialised.at(piece);
      EXPECT_FALSE(is_within(told.src.info.buffer, values_) || is_within(told.dst.info.buffer, values_));
      EXPECT_EQ(told.src.info.buffer, told.dst.info.buffer);
      doubles(piece);
      EXPECT_NE(poll(*op), in_flight);
    }
    Values expected = counted_from(1);
    std::transform(expected.begin(), expected.end(), expected.begin(), [](float value) { return 2 * value; });
    EXPECT_EQ(values_, expected);
  }
}

TEST_F(CallersMemory, TheOwnPartIsSentFromItsPlaceAmongAll) {
  Parts parts;
  for (const Pieces& pieces : {kWhole, kOfFour}) {
    ucc = {};
    Pieces gathers = pieces;
    gathers.sources = {part_of(values_)};
    for (const auto& part : parts.all) {
      gathers.destinations.push_back(part_of(part));
    }
    gathers.in_place = true;
    gathers.own_part = 1;
    Probe op(team_, args(nullptr, &destination_), gathers);
    ASSERT_TRUE(start(op).ok());
    const ucc_coll_buffer_info_t& side = ucc.initialised.at(0).dst.info;
    const std::size_t share = pieces.count == 0 ? kElements : pieces.count;
    const auto* const bounce = static_cast<const float*>(side.buffer);
    EXPECT_EQ(std::vector<float>(bounce + share, bounce + 2 * share),
              std::vector<float>(values_.begin(), values_.begin() + share));
  }
}

TEST_F(CallersMemory, IsNotTouchedOnceItWasTakenBack) {
  const auto op = in_place(kOfFour);
  ASSERT_TRUE(start(*op).ok());
  EXPECT_TRUE(op->take_back(Op::After::given_up));
  values_.fill(100);
  doubles(0);
  doubles(1);
  EXPECT_NE(poll(*op), ended);
  EXPECT_EQ(ucc.posted, 2U) << "a piece was sent of what the caller has now";
  EXPECT_EQ(values_, (Values{100, 100, 100, 100, 100, 100, 100, 100, 100, 100}));
}

TEST_F(CallersMemory, WhatItHeldIsSentByAnOperationThatGoesOnAlone) {
  const auto op = in_place(kOfFour);
  ASSERT_TRUE(start(*op).ok());
  EXPECT_TRUE(op->take_back(Op::After::goes_on));
  values_.fill(100);
  for (std::size_t piece = 0; piece < 3; ++piece) {
    const std::vector<float> sent = seen(ucc.initialised.at(piece).src.info);
    EXPECT_EQ(sent.front(), static_cast<float>(4 * piece + 1));
    doubles(piece);
    EXPECT_EQ(poll(*op), piece == 2 ? ended : advanced);
  }
  EXPECT_EQ(values_, (Values{100, 100, 100, 100, 100, 100, 100, 100, 100, 100}));
}

// What a late rank completes after all is finalised, and then nothing of the operation is kept.
TEST_F(CallersMemory, AnOperationThatWasGivenUpIsDrainedWhenUccHasEndedIt) {
  const auto op = in_place(kOfFour);
  ASSERT_TRUE(start(*op).ok());
  EXPECT_TRUE(op->take_back(Op::After::given_up));
  with_baton([&](LoopToken& token) {
    EXPECT_FALSE(op->is_drained(token));
    ucc.end(0);
    EXPECT_FALSE(op->is_drained(token));
    ucc.end(1);
    EXPECT_TRUE(op->is_drained(token));
    EXPECT_EQ(context_.outstanding(token), 0U);
  });
  EXPECT_EQ(ucc.finalised, (std::vector<std::size_t>{0, 1}));
}

TEST_F(CallersMemory, ARequestThatFailedIsKept) {
  const auto op = in_place(kWhole);
  ASSERT_TRUE(start(*op).ok());
  EXPECT_TRUE(op->take_back(Op::After::given_up));
  ucc.end(0, UCC_ERR_NO_MESSAGE);
  with_baton([&](LoopToken& token) { EXPECT_FALSE(op->is_drained(token)); });
  EXPECT_TRUE(ucc.finalised.empty());
}

// UCC may have posted some of its messages.
TEST_F(CallersMemory, WhatAPostThatFailedWasGivenIsKept) {
  const auto op = in_place(kOfFour);
  ucc.post_says = UCC_ERR_NO_MESSAGE;
  EXPECT_FALSE(start(*op).ok());
  EXPECT_TRUE(op->take_back(Op::After::given_up));
  with_baton([&](LoopToken& token) { EXPECT_FALSE(op->is_drained(token)); });
}

// UCC may say that a request has ended whose messages are under way, once it has reported an error.
TEST_F(CallersMemory, ARequestThatEndedWellBesideAnErrorIsKept) {
  const auto op = in_place(kWhole);
  ASSERT_TRUE(start(*op).ok());
  ErrorLog::add("of somebody else");
  doubles(0);
  EXPECT_EQ(poll(*op), ended);
  EXPECT_TRUE(op->transport_status().ok());
  EXPECT_FALSE(op->doubt().ok());
  EXPECT_TRUE(ucc.finalised.empty());
  with_baton([&](LoopToken& token) {
    EXPECT_FALSE(op->is_drained(token));
    EXPECT_EQ(context_.outstanding(token), 0U);
  });
  EXPECT_EQ(values_, (Values{2, 4, 6, 8, 10, 12, 14, 16, 18, 20}));
}

TEST_F(CallersMemory, PiecesAfterAnErrorGetOtherRoomsOnceNoneIsUnderWay) {
  for (const std::size_t count : {1U, 2U, 4U}) {  // in the operation itself, and not
    ucc = {};
    values_ = counted_from(1);
    Pieces pieces = kOfFour;
    pieces.count = count;
    const auto op = in_place(pieces);
    ASSERT_TRUE(start(*op).ok());
    ErrorLog::add("of somebody else");
    doubles(0);
    EXPECT_EQ(poll(*op), advanced);
    EXPECT_EQ(ucc.posted, 2U) << "a piece was sent from a bounce buffer that may be in use";
    doubles(1);
    EXPECT_EQ(poll(*op), advanced);
    for (std::size_t piece = 2; piece < pieces.number(); ++piece) {
      ASSERT_GT(ucc.posted, piece);
      for (const std::size_t kept : {0U, 1U}) {
        EXPECT_NE(ucc.initialised[piece].src.info.buffer, ucc.initialised[kept].src.info.buffer);
      }
      doubles(piece);
      EXPECT_EQ(poll(*op), piece + 1 == pieces.number() ? ended : advanced);
    }
    EXPECT_EQ(ucc.finalised.size(), pieces.number() - 2);
    EXPECT_EQ(values_, (Values{2, 4, 6, 8, 10, 12, 14, 16, 18, 20}));
    with_baton([&](LoopToken& token) { EXPECT_FALSE(op->is_drained(token)); });
  }
}

// --- order of pieces

TEST_F(CollectiveTest, AFewPiecesAreInFlightAtATime) {
  for (const unsigned window : {1U, 3U, Pieces::kMaxWindow}) {
    ucc = {};
    const auto op = probe({.total = 100, .count = 5, .element_size = sizeof(float), .window = window});
    ASSERT_TRUE(start(*op).ok());
    for (std::size_t piece = 0; piece < 20; ++piece) {
      ASSERT_EQ(ucc.in_flight(), std::min<std::size_t>(window, 20 - piece));
      ucc.end(piece);
      ASSERT_EQ(poll(*op), piece == 19 ? ended : advanced);
    }
  }
}

TEST_F(CollectiveTest, PiecesThatEndOutOfTurnAreWaitedForInTurn) {
  const auto op = probe(kOfFour);
  ASSERT_TRUE(start(*op).ok());
  ucc.end(1);
  EXPECT_EQ(poll(*op), in_flight);
  EXPECT_EQ(ucc.posted, 2U);
  ucc.end(0);
  EXPECT_EQ(poll(*op), advanced);
  EXPECT_EQ(ucc.posted, 3U);
}

// UCC matches collectives by the order in which a team initialises them.
TEST_F(CollectiveTest, TheNextOneOfATeamStartsWhenTheLastPieceWasPosted) {
  const auto first = probe(kOfFour);
  const auto second = probe(kWhole);
  ASSERT_TRUE(start(*first).ok());
  ASSERT_TRUE(start(*second).ok());
  EXPECT_EQ(poll(*second), in_flight);
  EXPECT_EQ(ucc.posted, 2U);
  ucc.end(0);
  EXPECT_EQ(poll(*first), advanced);
  EXPECT_EQ(poll(*second), advanced);
  ASSERT_EQ(ucc.posted, 4U);
  EXPECT_EQ(ucc.initialised[2].src.info.count, 2U);
  EXPECT_EQ(ucc.initialised[3].src.info.count, kElements);
}

// --- several at once

constexpr Pieces kMegabyte{.total = std::size_t{1} << 20};

TEST_F(CollectiveTest, OnOneHostALargeOneStartsOnceThereIsRoomForIt) {
  const auto one = probe(kMegabyte);
  const auto two = probe(kMegabyte);
  const auto three = probe(kMegabyte);
  for (const auto& each : {one, two, three}) {
    EXPECT_TRUE(start(*each).ok());
  }
  EXPECT_EQ(ucc.posted, 2U);
  EXPECT_EQ(two->waits_for(), "");
  EXPECT_EQ(poll(*three), in_flight);
  EXPECT_EQ(three->waits_for(), "earlier operations of its group, and none of its data was sent");
  ucc.end(0);
  EXPECT_EQ(poll(*one), ended);
  Bell::Sleep sleep(bell_);
  EXPECT_EQ(poll(*three), advanced);
  EXPECT_EQ(ucc.posted, 3U);
  EXPECT_TRUE(sleep.wait(std::chrono::milliseconds(0)));
  EXPECT_EQ(three->waits_for(), "");
}

TEST_F(CollectiveTest, AnErrorBeforeItHadRoomIsNoDoubtAboutIt) {
  const auto before = probe({.total = std::size_t{1} << 30});
  const auto after = probe(kMegabyte);
  EXPECT_TRUE(start(*before).ok());
  EXPECT_TRUE(start(*after).ok());
  ErrorLog::add("of somebody else");
  ucc.end(0);
  EXPECT_EQ(poll(*before), ended);
  EXPECT_EQ(poll(*after), advanced);
  ucc.end(1);
  EXPECT_EQ(poll(*after), ended);
  EXPECT_FALSE(before->doubt().ok());
  EXPECT_TRUE(after->doubt().ok());
}

TEST_F(CollectiveTest, OneThatWaitsForRoomKeepsItsPlaceBeforeASmallOne) {
  const auto huge = probe({.total = std::size_t{1} << 30});
  const auto large = probe(kMegabyte);
  const auto small = probe(kWhole);
  for (const auto& each : {huge, large, small}) {
    EXPECT_TRUE(start(*each).ok());
  }
  EXPECT_EQ(poll(*small), in_flight);
  EXPECT_EQ(ucc.posted, 1U);
  ucc.end(0);
  EXPECT_EQ(poll(*huge), ended);
  EXPECT_EQ(poll(*small), in_flight);
  EXPECT_EQ(poll(*large), advanced);
  EXPECT_EQ(poll(*small), advanced);
}

TEST_F(CollectiveTest, OneThatIsLargerThanAllRoomStartsWhenItIsAlone) {
  const auto huge = probe({.total = std::size_t{1} << 30});
  EXPECT_TRUE(start(*huge).ok());
  EXPECT_EQ(ucc.posted, 1U);
}

TEST_F(CollectiveTest, ASmallOneNeedsNoRoom) {
  const auto huge = probe({.total = std::size_t{1} << 30});
  const auto small = probe(kWhole);
  EXPECT_TRUE(start(*huge).ok());
  EXPECT_TRUE(start(*small).ok());
  EXPECT_EQ(ucc.posted, 2U);
}

TEST_F(CollectiveTest, BetweenHostsThereIsRoomForAll) {
  const auto team = std::make_shared<UccTeam>(6, std::vector<std::uint64_t>{0, 1}, 0, Bells{{}, false}, domain_);
  with_baton([&](LoopToken& token) { EXPECT_EQ(team->create_post(token, context_), UCC_OK); });
  std::vector<std::shared_ptr<Probe>> several;
  for (int i = 0; i < 5; ++i) {
    several.push_back(std::make_shared<Probe>(team, args(&source_, &destination_), kMegabyte));
    EXPECT_TRUE(start(*several.back()).ok());
  }
  EXPECT_EQ(ucc.posted, 5U);
}

// --- buffers that are filled and emptied meanwhile

// Says of the first `there` pieces that they have arrived.
struct LateFlow final : PieceFlow {
  std::optional<Status> arrived(std::size_t piece) override {
    asked.push_back(piece);
    return !cannot_arrive.ok() ? std::optional(cannot_arrive) : piece < there ? std::optional(Status()) : std::nullopt;
  }
  Status ended(std::size_t piece) override {
    brought.push_back(piece);
    at_end();
    return cannot_leave;
  }

  std::size_t there = 0;
  Status cannot_arrive;
  Status cannot_leave;
  std::function<void()> at_end = [] {};
  std::vector<std::size_t> asked;
  std::vector<std::size_t> brought;
};

using Numbers = std::vector<std::size_t>;

Pieces through(LateFlow& flow, Pieces pieces = kOfFour) {
  pieces.flow = &flow;
  return pieces;
}

TEST_F(CollectiveTest, APieceIsPostedOnceItHasArrived) {
  LateFlow flow;
  const auto op = probe(through(flow));
  ASSERT_TRUE(start(*op).ok());
  EXPECT_EQ(poll(*op), in_flight);
  EXPECT_EQ(ucc.posted, 0U);
  flow.there = 1;
  EXPECT_EQ(poll(*op), advanced);
  EXPECT_EQ(poll(*op), in_flight);
  EXPECT_EQ(ucc.posted, 1U);
  ucc.end(0);
  EXPECT_EQ(poll(*op), advanced);  // its result is passed on before the next one arrives
  EXPECT_EQ(flow.brought, (Numbers{0}));
  EXPECT_EQ(ucc.posted, 1U);
  flow.there = 3;
  EXPECT_EQ(poll(*op), advanced);
  EXPECT_EQ(ucc.posted, 3U);
  ucc.end(1);
  ucc.end(2);
  EXPECT_EQ(poll(*op), ended);
  EXPECT_EQ(flow.brought, (Numbers{0, 1, 2}));
  EXPECT_TRUE(op->transport_status().ok());
}

TEST_F(CollectiveTest, WhatHasArrivedWaitsForItsPlaceInTheWindow) {
  LateFlow flow;
  flow.there = 3;
  const auto op = probe(through(flow));
  ASSERT_TRUE(start(*op).ok());
  EXPECT_EQ(poll(*op), in_flight);
  EXPECT_EQ(flow.asked, (Numbers{0, 1}));
  ucc.end(0);
  EXPECT_EQ(poll(*op), advanced);
  EXPECT_EQ(flow.asked, (Numbers{0, 1, 2}));
  EXPECT_EQ(ucc.posted, 3U);
}

TEST_F(CollectiveTest, AWholeOneArrivesAsOnePiece) {
  LateFlow flow;
  const auto op = probe(through(flow, kWhole));
  ASSERT_TRUE(start(*op).ok());
  EXPECT_EQ(ucc.posted, 0U);
  flow.there = 1;
  EXPECT_EQ(poll(*op), advanced);
  ucc.end(0);
  EXPECT_EQ(poll(*op), ended);
  EXPECT_EQ(flow.brought, (Numbers{0}));
}

TEST_F(CollectiveTest, TheNextOneOfATeamStartsWhenTheLastPieceHasArrived) {
  LateFlow flow;
  const auto first = probe(through(flow));
  const auto second = probe(kWhole);
  ASSERT_TRUE(start(*first).ok());
  ASSERT_TRUE(start(*second).ok());
  flow.there = 2;
  EXPECT_EQ(poll(*first), advanced);
  ucc.end(0);
  ucc.end(1);
  EXPECT_EQ(poll(*first), advanced);
  EXPECT_EQ(poll(*second), in_flight);
  flow.there = 3;
  EXPECT_EQ(poll(*first), advanced);
  EXPECT_EQ(poll(*second), advanced);
  ASSERT_EQ(ucc.posted, 4U);
  EXPECT_EQ(ucc.initialised[3].src.info.count, kElements);
}

TEST_F(CollectiveTest, PartsAreReadOnceTheyArrivedAndHoldTheirSharesAtTheEnd) {
  Parts parts;
  Pieces pieces = kOfFour;
  for (auto& part : parts.all) {
    pieces.sources.push_back(part_of(part));
    pieces.destinations.push_back(part_of(part));
  }
  LateFlow flow;
  Probe op(team_, args(&source_, &destination_), through(flow, pieces));
  ASSERT_TRUE(start(op).ok());
  parts.all[1][0] = 77;
  flow.there = 1;
  EXPECT_EQ(poll(op), advanced);
  const auto* const share = static_cast<const float*>(ucc.initialised.at(0).src.info.buffer);
  EXPECT_EQ(share[4], 77);
  static_cast<float*>(ucc.initialised.at(0).dst.info.buffer)[4] = 78;
  float brought = 0;
  flow.at_end = [&] { brought = parts.all[1][0]; };
  ucc.end(0);
  EXPECT_EQ(poll(op), advanced);
  EXPECT_EQ(brought, 78);
}

TEST_F(CollectiveTest, APieceThatCameLateWakesTheMembers) {
  LateFlow flow;
  const auto op = probe(through(flow));
  ASSERT_TRUE(start(*op).ok());
  Bell::Sleep sleep(bell_);
  EXPECT_EQ(poll(*op), in_flight);
  EXPECT_FALSE(sleep.wait(Clock::duration::zero()));
  flow.there = 1;
  EXPECT_EQ(poll(*op), advanced);
  EXPECT_TRUE(sleep.wait(Clock::duration::zero()));
}

TEST_F(CollectiveTest, WhatCannotArriveEndsItAndLetsTheNextOneStart) {
  for (const std::size_t there : {0U, 1U}) {
    ucc = {};
    LateFlow flow;
    flow.there = there;
    const auto op = probe(through(flow));
    ASSERT_TRUE(start(*op).ok());
    flow.cannot_arrive = Status(StatusCode::transport, "no such device");
    EXPECT_EQ(poll(*op), ended);
    EXPECT_EQ(op->transport_status().code(), StatusCode::transport);
    EXPECT_EQ(op->transport_status().message(), "no such device");
    EXPECT_EQ(ucc.posted, there);
    EXPECT_TRUE(ucc.finalised.empty());
    ASSERT_TRUE(start(*probe(kWhole)).ok());
    EXPECT_EQ(ucc.posted, there + 1);
  }
}

TEST_F(CollectiveTest, WhatCannotBePassedOnEndsIt) {
  LateFlow flow;
  flow.there = 3;
  const auto op = probe(through(flow));
  ASSERT_TRUE(start(*op).ok());
  flow.cannot_leave = Status(StatusCode::transport, "no such device");
  ucc.end(0);
  EXPECT_EQ(poll(*op), ended);
  EXPECT_EQ(op->transport_status().message(), "no such device");
  EXPECT_EQ(flow.brought, (Numbers{0}));
  EXPECT_EQ(ucc.posted, 2U);
  with_baton([&](LoopToken& token) {
    EXPECT_FALSE(op->is_drained(token));
    ucc.end(1);
    EXPECT_TRUE(op->is_drained(token));
  });
}

// --- failures

TEST_F(CollectiveTest, RefusedAsAWholeItLeavesTheTeamAsItWas) {
  ucc.init_says = UCC_ERR_NOT_SUPPORTED;
  EXPECT_EQ(start(*probe(kOfFour)).code(), StatusCode::unsupported);
  ucc.init_says = UCC_OK;
  ASSERT_TRUE(start(*probe(kWhole)).ok());
  EXPECT_EQ(ucc.posted, 1U);
}

TEST_F(CollectiveTest, RefusedAfterTheFirstPieceItIsAFailureOfTheTransport) {
  const auto op = probe(kOfFour);
  ASSERT_TRUE(start(*op).ok());
  ucc.init_says = UCC_ERR_NOT_SUPPORTED;
  ucc.end(0);
  EXPECT_EQ(poll(*op), ended);
  EXPECT_EQ(op->transport_status().code(), StatusCode::transport);
}

TEST_F(CollectiveTest, WhatCannotBePostedIsAFailureOfTheTransportWhateverUccCallsIt) {
  ucc.post_says = UCC_ERR_NOT_SUPPORTED;
  EXPECT_EQ(start(*probe(kWhole)).code(), StatusCode::transport);
}

TEST_F(CollectiveTest, WhatEndsBadlyIsAFailureOfTheTransportAndItsRequestStays) {
  const auto op = probe(kOfFour);
  ASSERT_TRUE(start(*op).ok());
  ucc.end(0, UCC_ERR_NOT_SUPPORTED);
  EXPECT_EQ(poll(*op), ended);
  EXPECT_EQ(op->transport_status().code(), StatusCode::transport);
  EXPECT_TRUE(ucc.finalised.empty());
  EXPECT_EQ(ucc.posted, 2U);
}

TEST_F(CollectiveTest, OfATeamThatIsGoneIsRefused) {
  with_baton([this](LoopToken& token) { team_->destroy(token); });
  EXPECT_EQ(start(*probe(kWhole)).code(), StatusCode::closed);
  EXPECT_TRUE(ucc.initialised.empty());
}

// --- waking and waiting

TEST_F(CollectiveTest, IsPatientByTheBytesOfAPieceOrOfTheWhole) {
  constexpr std::size_t kMany = 1000000;
  EXPECT_EQ(probe({.total = kMany, .element_size = 4})->patience(), microseconds(4000));
  EXPECT_EQ(probe({.total = kMany, .count = kMany / 10, .element_size = 4})->patience(), microseconds(400));
  EXPECT_EQ(probe({})->patience(), microseconds(0));
  EXPECT_TRUE(probe({.total = kMany, .element_size = 4})->starts_slowly());
  EXPECT_FALSE(probe({.total = kMany, .count = 1000, .element_size = 4})->starts_slowly());
  EXPECT_FALSE(probe({})->starts_slowly());
}

TEST_F(CollectiveTest, RingsTheMembersOfItsTeam) {
  const auto op = probe(kWhole);
  Bell::Sleep sleep(bell_);
  op->announce();
  EXPECT_TRUE(sleep.wait(Clock::duration::zero()));
  EXPECT_TRUE(op->is_announced());
  EXPECT_EQ(&op->domain(), domain_.get());
}

TEST_F(CollectiveTest, MemoryIsAskedForByOneThatNeverBegins) {
  with_baton([this](LoopToken& token) { EXPECT_TRUE(computes_in(token, *team_, UCC_MEMORY_TYPE_CUDA)); });
  ASSERT_EQ(ucc.initialised.size(), 1U);
  EXPECT_EQ(ucc.initialised[0].src.info.mem_type, UCC_MEMORY_TYPE_CUDA);
  EXPECT_EQ(ucc.initialised[0].dst.info.mem_type, UCC_MEMORY_TYPE_CUDA);
  EXPECT_NE(ucc.initialised[0].src.info.buffer, nullptr);  // in place nothing would be copied
  EXPECT_EQ(ucc.posted, 0U);
  EXPECT_EQ(ucc.finalised, std::vector<std::size_t>{0});
}

TEST_F(CollectiveTest, MemoryThatUccHasNothingForIsRefused) {
  ucc.init_says = UCC_ERR_NOT_SUPPORTED;
  with_baton([this](LoopToken& token) { EXPECT_FALSE(computes_in(token, *team_, UCC_MEMORY_TYPE_ROCM)); });
  EXPECT_EQ(ucc.posted, 0U);
}

TEST(MemoryType, HasANameForTorchsDevices) {
  EXPECT_EQ(memory_type("cuda"), UCC_MEMORY_TYPE_CUDA);
  EXPECT_EQ(memory_type("rocm"), UCC_MEMORY_TYPE_ROCM);
  EXPECT_EQ(memory_type("host"), UCC_MEMORY_TYPE_HOST);
  EXPECT_EQ(memory_type("xpu"), std::nullopt);
}

}  // namespace
}  // namespace torch_ucc
