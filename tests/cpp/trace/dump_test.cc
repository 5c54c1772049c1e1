#include "trace/dump.h"

#include <gtest/gtest.h>

#include <string>

namespace torch_ucc::trace {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Dump, SaysEverythingThatIsRecorded) {
  FlightRecorder recorder(4);
  CallRecord event;
  event.group = recorder.add_group({"world", 1, {4, 9}, false, "", {}});
  event.site = recorder.add_site("a.py:1 f\na.py:9 main");
  event.seq = 3;
  event.op = "broadcast";
  event.dtype = "float32";
  event.input_elements = event.output_elements = 5;
  event.bytes = 20;
  event.root = 1;
  event.route = Route::ucc;
  recorder.begin(event).ended(StatusCode::peer_gone);
  recorder.note_failure(event.group, "rank 0 is gone");

  const std::string json = to_json(recorder, "test");
  EXPECT_TRUE(contains(json, R"("reason":"test","rank":9,)")) << json;
  EXPECT_TRUE(contains(json, R"("groups":[{"number":1,"name":"world","rank":1,"ranks":[4,9],"closed":false,)"
                             R"("failure":"rank 0 is gone","errors":{"broadcast":1},"context":0}])"))
      << json;
  EXPECT_TRUE(contains(json, R"("sites":{"1":"a.py:1 f\u000aa.py:9 main"})")) << json;
  EXPECT_TRUE(contains(json, R"("records":[{"id":1,"group":1,"seq":3,"op":"broadcast","message":false,"dtype":"float32",)"
                             R"("reduce_op":"","input_elements":5,"output_elements":5,"bytes":20,"root":1,"peer":-1,"tag":0,)"
                             R"("route":"ucc","state":"failed","result":"peer_gone",)"))
      << json;
}

TEST(Dump, EscapesText) {
  FlightRecorder recorder(4);
  recorder.add_group({"a \"b\" \\ \n", 0, {0}, false, "", {}});
  EXPECT_TRUE(contains(to_json(recorder, ""), R"("name":"a \"b\" \\ \u000a")"));
}

TEST(Dump, TellsOnlyWhatIsNew) {
  FlightRecorder recorder(4);
  recorder.begin({});
  recorder.begin({});
  const std::string json = to_json(recorder, "", 2);
  EXPECT_FALSE(contains(json, R"({"id":1,)"));
  EXPECT_TRUE(contains(json, R"({"id":2,)"));
  EXPECT_TRUE(contains(json, R"("first_id":1,"last_id":2,)"));
}

}  // namespace
}  // namespace torch_ucc::trace
