#include "trace/event.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace torch_ucc::trace {
namespace {

TEST(Event, NamesOfItsKindsAreKnownAndDiffer) {
  std::set<std::string> codes;
  for (int code = 0; code <= static_cast<int>(StatusCode::internal); ++code) {
    codes.insert(name(static_cast<StatusCode>(code)));
  }
  EXPECT_EQ(codes.size(), static_cast<std::size_t>(StatusCode::internal) + 1);
  EXPECT_EQ(codes.count("unknown"), 0U);
  EXPECT_EQ((std::set<std::string>{name(State::issued), name(State::posted), name(State::completed), name(State::failed)}),
            (std::set<std::string>{"issued", "posted", "completed", "failed"}));
  EXPECT_EQ((std::set<std::string>{name(Route::none), name(Route::ucc), name(Route::native), name(Route::messages),
                                   name(Route::store)}),
            (std::set<std::string>{"none", "ucc", "native", "messages", "store"}));
}

TEST(Event, IsAsFarAsItsTimesSay) {
  Event event;
  EXPECT_EQ(event.state(), State::issued);
  event.posted_ns = 1;
  EXPECT_EQ(event.state(), State::posted);
  event.ended_ns = 2;
  EXPECT_EQ(event.state(), State::completed);
  event.result = StatusCode::timeout;
  EXPECT_EQ(event.state(), State::failed);
}

}  // namespace
}  // namespace torch_ucc::trace
