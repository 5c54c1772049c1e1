#include "trace/flight_recorder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <thread>
#include <vector>

namespace torch_ucc::trace {
namespace {

// All its fields say the same number, so that a torn read shows.
CallRecord call_of(std::uint64_t number) {
  CallRecord event;
  event.seq = number;
  event.op = "all_reduce";
  event.input_elements = event.output_elements = event.bytes = event.issued_ns = static_cast<std::int64_t>(number);
  event.tag = static_cast<std::uint32_t>(number);
  return event;
}

bool is_whole(const Event& event) {
  const auto number = static_cast<std::int64_t>(event.seq);
  return event.input_elements == number && event.output_elements == number && event.bytes == number &&
         event.issued_ns == number && event.tag == static_cast<std::uint32_t>(number) && event.op == std::string("all_reduce");
}

TEST(FlightRecorder, TellsWhatBecameOfAnOperation) {
  FlightRecorder recorder(4);
  const Recording recording = recorder.begin(call_of(7));
  EXPECT_EQ(recorder.records().at(0).event.state(), State::issued);
  recording.posted();
  EXPECT_EQ(recorder.records().at(0).event.state(), State::posted);
  EXPECT_GT(recorder.records().at(0).event.posted_ns, 0);
  EXPECT_EQ(recorder.records().at(0).event.ended_ns, 0);
  recording.ended(StatusCode::ok);
  const FlightRecorder::Record record = recorder.records().at(0);
  EXPECT_EQ(record.id, 1U);
  EXPECT_TRUE(is_whole(record.event));
  EXPECT_EQ(record.event.state(), State::completed);
  EXPECT_GE(record.event.ended_ns, record.event.posted_ns);
}

TEST(FlightRecorder, TellsWhenItWasFirstWaitedFor) {
  FlightRecorder recorder(4);
  const Recording recording = recorder.begin(call_of(1));
  EXPECT_EQ(recorder.records().at(0).event.awaited_ns, 0);
  const Clock::time_point start = Clock::now();
  recording.awaited(start);
  recording.awaited(start + milliseconds(1));
  EXPECT_EQ(recorder.records().at(0).event.awaited_ns, nanoseconds(start));
  recorder.begin(call_of(2));
  EXPECT_EQ(recorder.records().at(1).event.awaited_ns, 0);
}

TEST(FlightRecorder, KeepsTheFirstEnd) {
  FlightRecorder recorder(4);
  const Recording recording = recorder.begin(call_of(1));
  recording.ended(StatusCode::timeout);
  recording.ended(StatusCode::ok);
  EXPECT_EQ(recorder.records().at(0).event.state(), State::failed);
  EXPECT_EQ(recorder.records().at(0).event.result, StatusCode::timeout);
}

TEST(FlightRecorder, KeepsTheLastOnes) {
  FlightRecorder recorder(4);
  const Recording first = recorder.begin(call_of(1));
  for (std::uint64_t i = 2; i <= 6; ++i) {
    recorder.begin(call_of(i));
  }
  first.ended(StatusCode::timeout);  // its place is another's: nothing
  const auto records = recorder.records();
  ASSERT_EQ(records.size(), 4U);
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(records[i].id, i + 3);
    EXPECT_EQ(records[i].event.seq, i + 3);
    EXPECT_EQ(records[i].event.state(), State::issued);
  }
  EXPECT_EQ(recorder.records(6).size(), 1U);
  EXPECT_EQ(recorder.held().last, 6U);
}

TEST(FlightRecorder, RecordsOnlyWhileItIsOn) {
  FlightRecorder recorder(4);
  recorder.set_on(false);
  EXPECT_FALSE(recorder.begin(call_of(1)).event());
  EXPECT_EQ(recorder.held().last, 0U);
  recorder.set_on(true);
  EXPECT_TRUE(recorder.begin(call_of(2)).event());
}

TEST(FlightRecorder, ARecordingOfNoneDoesNothing) {
  const Recording none;
  none.posted();
  none.ended(StatusCode::ok);
  EXPECT_FALSE(none.event());
}

TEST(FlightRecorder, ARecordingKnowsItsEventAsLongAsItIsThere) {
  FlightRecorder recorder(2);
  const Recording recording = recorder.begin(call_of(5));
  ASSERT_TRUE(recording.event());
  EXPECT_EQ(recording.event()->seq, 5U);
  recorder.begin(call_of(6));
  recorder.begin(call_of(7));
  EXPECT_FALSE(recording.event());
}

TEST(FlightRecorder, WhatIsReadWhileOthersWriteIsWhole) {
  FlightRecorder recorder(8);
  std::atomic<int> writing{2};
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 2; ++writer) {
    writers.emplace_back([&] {
      for (std::uint64_t i = 1; i <= 20000; ++i) {
        const Recording recording = recorder.begin(call_of(i));
        recording.posted();
        recording.ended(StatusCode::ok);
      }
      writing.fetch_sub(1);
    });
  }
  do {
    std::uint64_t before = 0;
    for (const FlightRecorder::Record& record : recorder.records()) {
      EXPECT_TRUE(is_whole(record.event));
      EXPECT_GT(record.id, before);
      before = record.id;
    }
  } while (writing.load() != 0);
  for (std::thread& writer : writers) {
    writer.join();
  }
  EXPECT_EQ(recorder.held().last, 40000U);
  const auto records = recorder.records();
  EXPECT_EQ(records.size(), 8U);
  for (const FlightRecorder::Record& record : records) {
    EXPECT_EQ(record.event.state(), State::completed);
  }
}

TEST(FlightRecorder, KnowsGroupsTheirErrorsAndTheirFirstFailure) {
  FlightRecorder recorder(4);
  EXPECT_EQ(recorder.global_rank(), -1);
  const std::uint32_t world = recorder.add_group({"world", 1, {0, 1}, false, "", {}});
  const std::uint32_t part = recorder.add_group({"part", 0, {1}, false, "", {}});
  EXPECT_NE(world, part);
  EXPECT_EQ(recorder.global_rank(), 1);
  recorder.note_failure(world, "a cut");
  recorder.note_failure(world, "what followed");
  recorder.close_group(part);
  CallRecord event = call_of(1);
  event.group = world;
  recorder.begin(event).ended(StatusCode::timeout);
  const auto groups = recorder.groups();
  EXPECT_EQ(groups.at(world).failure, "a cut");
  EXPECT_EQ(groups.at(world).errors.at("all_reduce"), 1U);
  EXPECT_FALSE(groups.at(world).closed);
  EXPECT_TRUE(groups.at(part).closed);
}

TEST(FlightRecorder, ForgetsTheOldestOfManyClosedGroups) {
  FlightRecorder recorder(4);
  const std::uint32_t open = recorder.add_group({"open", 0, {0}, false, "", {}});
  for (int i = 0; i < 1000; ++i) {
    recorder.close_group(recorder.add_group({"short", 0, {0}, false, "", {}}));
  }
  EXPECT_LT(recorder.groups().size(), 100U);
  EXPECT_EQ(recorder.groups().count(open), 1U);
  EXPECT_EQ(recorder.groups().rbegin()->first, 1001U);
}

TEST(FlightRecorder, GivesOnePlaceInTheProgramOneNumber) {
  FlightRecorder recorder(4);
  const std::uint32_t here = recorder.add_site("a.py:1 f");
  EXPECT_NE(here, 0U);
  EXPECT_NE(recorder.add_site("a.py:2 f"), here);
  EXPECT_EQ(recorder.add_site("a.py:1 f"), here);
  EXPECT_EQ(recorder.sites().at(here), "a.py:1 f");
}

// The shortest time of a few for `body`, of many times each, in nanoseconds.
template <typename Body>
double shortest(const Body& body) {
  constexpr int kTimes = 5000;
  auto best = Clock::duration::max();
  for (int batch = 0; batch < 40; ++batch) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kTimes; ++i) {
      body();
    }
    best = std::min(best, Clock::now() - start);
  }
  return std::chrono::duration<double, std::nano>(best).count() / kTimes;
}

// Told, not asserted: how long it takes is a matter of the machine.
TEST(FlightRecorder, CostOfAnOperation) {
  FlightRecorder recorder;
  std::int64_t latest = 0;
  const double all = shortest([&] {
    const Recording recording = recorder.begin(call_of(1));
    recording.posted();
    recording.ended(StatusCode::ok);
  });
  const double clock = shortest([&] { latest = std::max(latest, nanoseconds(Clock::now())); });
  std::cout << "recording an operation: " << all << " ns, of which two readings of the clock take " << 2 * clock << " ns\n";
  EXPECT_NE(latest, 0);
  EXPECT_EQ(recorder.records().size(), FlightRecorder::kCapacity);
}

// Numbers of the records in an extract, and its journal.
struct Extract {
  explicit Extract(const std::string& bytes) {
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof(size));
    journal = bytes.substr(sizeof(size), size);
    constexpr std::size_t kSlot = 128;
    for (std::size_t at = sizeof(size) + size; at < bytes.size(); at += kSlot) {
      std::uint64_t version = 0;
      std::memcpy(&version, bytes.data() + at, sizeof(version));
      ids.push_back(version / 2);
    }
    std::sort(ids.begin(), ids.end());
  }
  std::string journal;
  std::vector<std::uint64_t> ids;
};

TEST(FlightRecorder, GivesAnotherProcessWhatItNeeds) {
  FlightRecorder recorder;
  CallRecord call = call_of(1);
  call.group = recorder.add_group({"world", 1, {0, 1, 2, 3, 8}, false, "", {}, 7});
  recorder.begin(call);  // 1: does not end
  recorder.begin(call).ended(StatusCode::ok);
  CallRecord other = call;
  other.group = 99;
  recorder.begin(other).ended(StatusCode::ok);  // 3: the last one of its group
  other.is_message = true;
  recorder.begin(other).ended(StatusCode::ok);  // 4: the last message there
  for (int i = 0; i < 10; ++i) {
    recorder.begin(call).ended(StatusCode::ok);
  }
  const Extract extract(FlightRecorder::extract(recorder.address(), 3));
  EXPECT_EQ(extract.ids, (std::vector<std::uint64_t>{1, 3, 4, 12, 13, 14}));
  EXPECT_NE(extract.journal.find(R"("name":"world","rank":1,"ranks":"0-3,8","closed":false)"), std::string::npos)
      << extract.journal;
  EXPECT_NE(extract.journal.find(R"("context":7)"), std::string::npos);
}

TEST(FlightRecorder, GivesNothingWhereThereIsNoRecorder) {
  EXPECT_EQ(FlightRecorder::extract("", 1), "");
  EXPECT_EQ(FlightRecorder::extract("1:2:3:4", 1), "");
  FlightRecorder small(4);  // of another size
  EXPECT_EQ(FlightRecorder::extract(small.address(), 1), "");
}

TEST(FlightRecorder, IsNotSharedWithAForkedChild) {
  const std::string address = recorder().address();
  const std::uint64_t last = recorder().held().last;
  recorder().begin(call_of(1));
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_new = recorder().held().last == 0 && recorder().address() != address;
    recorder().begin(call_of(2));
    ::_exit(is_new && recorder().held().last == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(recorder().held().last, last + 1);
}

}  // namespace
}  // namespace torch_ucc::trace
