// SPDX-License-Identifier: Apache-2.0
// Golden screens are in golden/; KVCOVE_WRITE_GOLDEN=1 in the environment writes them anew.
#include "kvcove/top/screen.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "kvcove/base/size.h"
#include "kvcove/top/cells.h"

namespace kvcove::top {
namespace {

using testing::HasSubstr;
using testing::Not;

class ScreenTest : public testing::Test {
 protected:
  ScreenTest() {
    AddOwners();
    now_.namespaces = {
        {.name = "acme/llama-3.1-70b-fp8-tp8", .version = "step-1200", .bytes = 40 * kGiB},
        {.name = "acme/llama-3.1-70b-fp8-tp8", .version = "step-1190", .bytes = 0, .dead = true},
        {.name = "beta/\u6a21\u578b", .version = "", .bytes = 3 * kGiB + 512 * kMiB}};
    now_.engines = {
        {.name = "engine-1", .space = "acme/llama", .version = "step-1200", .state = "open"},
        {.name = "engine-2", .space = "acme/llama", .version = "step-1190", .state = "must reset"},
        {.name = "bad\x1b[2Jname", .space = "beta/\u6a21\u578b", .state = "open"}};
    now_.registered = 3;
    now_.tasks = {{.id = 7,
                   .kind = "drain",
                   .state = "running",
                   .from = "10.0.0.2:7401",
                   .copied = 12'000,
                   .copied_bytes = 5 * kGiB,
                   .left = 800,
                   .seconds = 75}};
    AddCounters();
    before_.role = now_.role = "leader";
    before_.term = now_.term = 3;
    frame_ = {
        .width = 80, .height = 24, .endpoint = "10.0.0.1:7480", .time = "12:00:01", .trouble = ""};
  }

  void AddOwners() {
    const Owner first{.address = "10.0.0.1:7401",
                      .host = "node-a",
                      .tenant = "acme",
                      .state = "live",
                      .capacity_bytes = 64 * kGiB,
                      .free_bytes = 16 * kGiB,
                      .objects = 812'345,
                      .disk_capacity_bytes = 2048 * kGiB,
                      .disk_bytes = 512 * kGiB,
                      .disks = 2,
                      .disks_aside = 1,
                      .lease_age_s = 0.12,
                      .hits = 0,
                      .hit_bytes = 0,
                      .put_bytes = 0,
                      .evictions = 0,
                      .disk_hits = 0,
                      .disk_hit_bytes = 0};
    Owner second = first;
    second.address = "10.0.0.2:7401";
    second.host = "node-b";
    second.state = "draining";
    second.disk_capacity_bytes = second.disk_bytes = second.disks = second.disks_aside = 0;
    second.free_bytes = 60 * kGiB;
    Owner third = second;
    third.address = "a-host-with-a-long-name.cluster.example.org:7401";
    third.state = "gone";
    third.lease_age_s = 83;
    before_.owners = {first, second, third};
    now_.owners = {first, second, third};
    Owner& busy = now_.owners->front();
    busy.hits = 12'000;
    busy.hit_bytes = 3 * kGiB;
    busy.put_bytes = 700 * kMiB;
    busy.disk_hits = 900;
    busy.disk_hit_bytes = 210 * kMiB;
    busy.evictions = 40;
    (*now_.owners)[1].hits = 30;
    (*now_.owners)[1].hit_bytes = 9 * kMiB;
  }

  void AddCounters() {
    now_.misses = {{"never put", 700}, {"evicted", 60}, {"owner gone", 5}, {"lease", 0}};
    before_.misses = {{"never put", 100}, {"evicted", 60}, {"owner gone", 0}, {"lease", 0}};
    before_.calls["lookup"].up_to = {{16e-6, 0}, {64e-6, 0}, {INFINITY, 0}};
    now_.calls["lookup"].up_to = {{16e-6, 700}, {64e-6, 990}, {INFINITY, 1000}};
    before_.calls["reset"].up_to = {{1e-3, 2}, {2e-3, 3}, {INFINITY, 3}};
    now_.calls["reset"] = before_.calls["reset"];
    now_.counters = {{"resets", 3}, {"resets not proven", 1}, {"prunes", 0}, {"refused calls", 0}};
  }

  View Make() const { return MakeView(&before_, now_, 2); }
  std::vector<std::string> Lines() const {
    const View view = Make();
    return Draw(&view, state_, frame_);
  }
  std::string Text() const {
    std::string text;
    for (const std::string& line : Lines()) text += line + "\n";
    return text;
  }
  void PressText(const std::string& letters) {
    for (const char letter : letters) PressKey({.text = std::string(1, letter)});
  }
  void PressKey(const Key& key) { Press(key, TablesOf(Make()), state_); }

  // Escape bytes are "^[" in the file, so that it can be read.
  void ExpectGolden(const std::string& name) {
    std::string text;
    for (const char byte : Text()) {
      if (byte == '\x1b') {
        text += "^[";
      } else {
        text += byte;
      }
    }
    const std::string path = fmt::format("{}/{}.txt", KVCOVE_GOLDEN_DIR, name);
    if (std::getenv("KVCOVE_WRITE_GOLDEN") != nullptr) std::ofstream(path) << text;
    std::ifstream file(path);
    const std::string golden((std::istreambuf_iterator<char>(file)), {});
    EXPECT_EQ(text, golden) << path << "\n" << text;
  }

  Sample before_;
  Sample now_;
  State state_;
  Frame frame_;
};

TEST_F(ScreenTest, OfEightyColumns) { ExpectGolden("80x24"); }

TEST_F(ScreenTest, OfEightyColumnsInColor) {
  frame_.color = true;
  ExpectGolden("80x24_color");
}

TEST_F(ScreenTest, OfTwoHundredColumns) {
  frame_.width = 200;
  frame_.height = 60;
  ExpectGolden("200x60");
}

TEST_F(ScreenTest, OfTwoHundredColumnsInColor) {
  frame_.width = 200;
  frame_.height = 60;
  frame_.color = true;
  ExpectGolden("200x60_color");
}

TEST_F(ScreenTest, WhileThePoolIsAway) {
  frame_.trouble = "NO ANSWER for 12 s: 10.0.0.1:7480: Connection refused";
  ExpectGolden("80x24_away");
}

TEST_F(ScreenTest, OfAnOwnerAlone) {
  Sample now{.role = "owner", .misses = now_.misses, .calls = now_.calls};
  now.owners = {now_.owners->front()};
  now.owners->front().lease_age_s.reset();
  now.owners->front().lease_left_s = 0.8;
  now_ = now;
  ExpectGolden("80x24_owner");
}

TEST_F(ScreenTest, NoLineIsLongerThanAScreenOfAnySize) {
  for (std::size_t width : {1, 2, 5, 11, 20, 40, 79, 80, 81, 132, 500}) {
    for (std::size_t height : {0, 1, 2, 5, 10, 24, 100}) {
      frame_.width = width;
      frame_.height = height;
      const std::vector<std::string> lines = Lines();
      EXPECT_EQ(lines.size(), height);
      for (const std::string& line : lines) EXPECT_LE(Cells(line), width) << line;
    }
  }
}

TEST_F(ScreenTest, NamesCannotControlTheTerminal) {
  EXPECT_THAT(Text(), Not(HasSubstr("\x1b")));
  EXPECT_THAT(Text(), HasSubstr("bad\\x1b[2Jname"));
  const std::string bad = "a\x1b]0;x\a";
  now_ = {.role = bad, .term = 3};
  now_.owners = {{.address = bad, .host = bad, .tenant = bad, .state = bad}};
  now_.namespaces = {{.name = bad, .version = bad, .bytes = {}, .dead = {}}};
  now_.engines = {{.name = bad, .space = bad, .version = bad, .state = bad}};
  now_.tasks = {{.kind = bad, .state = bad, .from = bad, .to = bad}};
  now_.misses[bad] = 1;
  now_.calls[bad].up_to = {{INFINITY, 1}};
  frame_ = {.width = 500, .height = 60, .endpoint = bad, .time = "", .trouble = bad};
  EXPECT_THAT(Text(), Not(HasSubstr("\x1b")));
  EXPECT_THAT(Text(), Not(HasSubstr("\a")));
}

TEST_F(ScreenTest, ShowsWhatOtherSizesWouldFind) {
  EXPECT_THAT(Text(), Not(HasSubstr("expected")));
  now_.expected = {.asked = 1000,
                   .distinct = 400,
                   .memory = {{"half", 250}, {"same", 300}, {"double", 350}, {"quadruple", 400}},
                   .disk = {{"double", 500}}};
  frame_.width = 120;
  EXPECT_THAT(Text(), HasSubstr("expected  memory x1/2 25.0 %  x1 30.0 %  x2 35.0 %  x4 40.0 %  "
                                "any 60.0 %  disk x2 50.0 %"));
  frame_.height = 19;
  EXPECT_THAT(Text(), Not(HasSubstr("expected"))) << "the lists need the lines";
}

TEST_F(ScreenTest, BytesThatNobodyCountsAreNoZero) {
  now_.namespaces = {{.name = "n", .version = "1", .bytes = {}, .dead = false}};
  now_.owners.reset();
  const View view = Make();
  EXPECT_EQ(TablesOf(view)[0].rows[0][2].text, "-");
}

TEST_F(ScreenTest, BeforeTheFirstAnswerItSaysWhatItWaitsFor) {
  const auto waiting = Draw(nullptr, state_, frame_);
  EXPECT_EQ(waiting[1], "waiting for the first answer");
  frame_.trouble = "NO ANSWER: refused";
  EXPECT_EQ(Draw(nullptr, state_, frame_)[1], "NO ANSWER: refused");
}

TEST_F(ScreenTest, KeysSortTheFocusedList) {
  const auto first_owner = [&] {
    const View view = Make();
    Table table = TablesOf(view)[0];
    const auto sort = state_.sorts.find("owners");
    table.SortBy(sort == state_.sorts.end() ? table.sort : sort->second);
    return table.rows[0][0].text;
  };
  EXPECT_EQ(first_owner(), "10.0.0.1:7401") << "the bytes read, at first";
  PressText("r");
  EXPECT_NE(first_owner(), "10.0.0.1:7401");
  // By the name: from the fifth column on, round to the first.
  while (state_.sorts["owners"].column != 0) PressText("s");
  EXPECT_EQ(first_owner(), "10.0.0.1:7401");
  PressText("r");
  EXPECT_THAT(first_owner(), HasSubstr("a-host"));
  EXPECT_THAT(Text(), HasSubstr("OWNER 3 v"));
}

TEST_F(ScreenTest, AFilterLeavesRowsOfAllLists) {
  PressText("/GONE");
  EXPECT_THAT(Text(), HasSubstr("rows with: GONE_"));
  EXPECT_THAT(Text(), HasSubstr("OWNER 1/3"));
  EXPECT_THAT(Text(), HasSubstr("ENGINE 0/3"));
  PressKey({.kind = Key::Kind::kBackspace});
  PressText("q");
  EXPECT_FALSE(state_.quit) << "it is a letter of the filter";
  EXPECT_EQ(state_.filter, "GONq");
  PressKey({.kind = Key::Kind::kEscape});
  EXPECT_EQ(state_.filter, "");
  EXPECT_FALSE(state_.typing);
}

TEST_F(ScreenTest, ABackspaceTakesAWholeCharacter) {
  state_.typing = true;
  PressKey({.text = "\u6a21"});
  PressKey({.text = "x"});
  PressKey({.kind = Key::Kind::kBackspace});
  PressKey({.kind = Key::Kind::kBackspace});
  EXPECT_EQ(state_.filter, "");
}

TEST_F(ScreenTest, TheFocusMovesOverTheListsThatThereAre) {
  PressKey({.kind = Key::Kind::kTab});
  EXPECT_EQ(state_.focus, "namespaces");
  PressText("4");
  EXPECT_EQ(state_.focus, "tasks");
  PressText("9");
  EXPECT_EQ(state_.focus, "tasks");
  PressKey({.kind = Key::Kind::kTab});
  EXPECT_EQ(state_.focus, "owners");
  PressKey({.kind = Key::Kind::kBackTab});
  EXPECT_EQ(state_.focus, "tasks");
  now_.tasks.reset();
  PressKey({.kind = Key::Kind::kTab});
  EXPECT_EQ(state_.focus, "namespaces") << "from the first one, for that list is gone";
}

TEST_F(ScreenTest, AZoomedListHasTheScreen) {
  PressText("2z");
  EXPECT_THAT(Text(), HasSubstr("> NAMESPACE 3"));
  EXPECT_THAT(Text(), Not(HasSubstr("OWNER")));
  EXPECT_THAT(Text(), Not(HasSubstr("misses/s")));
  PressKey({.kind = Key::Kind::kEscape});
  EXPECT_THAT(Text(), HasSubstr("OWNER"));
}

TEST_F(ScreenTest, ALongListScrollsToItsEndAndNoFurther) {
  for (int i = 0; i < 100; ++i) {
    now_.engines->push_back({.name = fmt::format("e{:03}", i), .state = "open"});
  }
  PressText("3z");
  EXPECT_THAT(Text(), Not(HasSubstr("engine-2")));
  PressKey({.kind = Key::Kind::kEnd});
  EXPECT_THAT(Text(), HasSubstr("engine-2"));
  EXPECT_THAT(Text(), HasSubstr("e099"));
  PressKey({.kind = Key::Kind::kHome});
  EXPECT_THAT(Text(), HasSubstr("e000"));
  PressKey({.kind = Key::Kind::kDown});
  EXPECT_THAT(Text(), Not(HasSubstr("bad")));
}

TEST_F(ScreenTest, FromTheEndOfAListOneKeyScrollsBack) {
  for (int i = 0; i < 100; ++i) {
    now_.engines->push_back({.name = fmt::format("e{:03}", i), .state = "open"});
  }
  PressText("3z");
  PressKey({.kind = Key::Kind::kEnd});
  const View view = Make();
  const auto draw = [&] { return Draw(&view, state_, frame_, &state_.first_rows); };
  const std::string last_but_one = draw().end()[-3];
  PressKey({.kind = Key::Kind::kUp});
  EXPECT_EQ(draw().end()[-2], last_but_one);
}

TEST_F(ScreenTest, EachListKeepsItsHeaderOnALowScreen) {
  for (int i = 0; i < 100; ++i) now_.owners->push_back({.address = fmt::format("o{:03}", i)});
  frame_.height = 16;
  const std::string text = Text();
  for (const char* title : {"OWNER", "NAMESPACE", "ENGINE", "TASK"}) {
    EXPECT_THAT(text, HasSubstr(title));
  }
}

TEST_F(ScreenTest, HelpEndsWithAnyKey) {
  PressText("?");
  EXPECT_THAT(Text(), HasSubstr("Any key ends this help."));
  PressText("q");
  EXPECT_FALSE(state_.help);
  EXPECT_FALSE(state_.quit);
  PressText("q");
  EXPECT_TRUE(state_.quit);
}

TEST_F(ScreenTest, TheIntervalHasBounds) {
  PressText("+");
  EXPECT_EQ(state_.interval_s, 2);
  for (int i = 0; i < 20; ++i) PressText("-");
  EXPECT_EQ(state_.interval_s, kLeastIntervalS);
  for (int i = 0; i < 40; ++i) PressText("+");
  EXPECT_EQ(state_.interval_s, kMostIntervalS);
}

TEST_F(ScreenTest, PausedIsSaid) {
  PressText(" ");
  EXPECT_THAT(Text(), HasSubstr("PAUSED"));
  PressText("p");
  EXPECT_THAT(Text(), Not(HasSubstr("PAUSED")));
}

TEST_F(ScreenTest, AsTextItHasAllRowsAndNoKeys) {
  for (int i = 0; i < 100; ++i) now_.owners->push_back({.address = fmt::format("o{:03}", i)});
  const std::vector<std::string> lines = DrawWhole(Make(), state_, frame_);
  EXPECT_GT(lines.size(), 110U);
  for (const std::string& line : lines) {
    EXPECT_THAT(line, Not(HasSubstr("q quit")));
    EXPECT_FALSE(line.starts_with(">")) << "nothing is focused";
  }
}

}  // namespace
}  // namespace kvcove::top
