// SPDX-License-Identifier: Apache-2.0
// `kvcove engine` as an operator types it, against the sockets of engines' schedulers.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/connector/scheduler/engine_server.h"
#include "kvcove/connector/test_store.h"
#include "tests/must.h"

namespace kvcove {
namespace {

using connector::EngineServer;
using connector::SchedulerRole;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

struct CommandOutcome {
  int status = -1;
  std::string out;  // stdout, then stderr
};

class EngineCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    std::string name = "/tmp/kvcove-engines-XXXXXX";
    directory_ = mkdtemp(name.data());
  }
  void TearDown() override {
    engines_.clear();
    std::filesystem::remove_all(directory_);
    SetLogLevel(LogLevel::kWarn);
  }
  struct Engine {
    std::unique_ptr<connector::LookupRunner> runner;
    std::unique_ptr<SchedulerRole> role;
    std::unique_ptr<EngineServer> server;
  };
  std::string Socket(int process) const {
    return fmt::format("{}/engine-0123456789abcdef-{}.sock", directory_, process);
  }
  void StartEngine(int process, const std::string& version = {}) {
    auto engine = std::make_unique<Engine>();
    connector::EngineShape shape{.model = "m", .hash_tokens = 4};
    shape.groups = {{.chunk_tokens = 4}};
    engine->runner =
        connector::RunHere(store_, SystemClock::Instance(), std::chrono::milliseconds(1000));
    engine->role = std::make_unique<SchedulerRole>(
        connector::SchedulerOptions{.shape = shape, .versions = connector::VersionSource::kEngine},
        store_, *engine->runner, SystemClock::Instance());
    if (!version.empty()) engine->role->SetVersion(version);
    engine->server = Must(EngineServer::Open(Socket(process), *engine->role));
    engines_.push_back(std::move(engine));
  }
  // As vLLM leaves one that it has killed.
  void LeaveSocket(int process) const {
    const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = Socket(process);
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  CommandOutcome Run(const std::string& words) const {
    const std::string line = fmt::format("{} engine --directory {} --timeout-ms 60000 {} 2>&1",
                                         KVCOVE_COMMAND, directory_, words);
    std::FILE* const pipe = popen(line.c_str(), "r");
    CommandOutcome outcome;
    std::array<char, 4096> part;
    while (const std::size_t got = std::fread(part.data(), 1, part.size(), pipe)) {
      outcome.out.append(part.data(), got);
    }
    const int status = pclose(pipe);
    outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return outcome;
  }

  std::string directory_;
  connector::TestPool pool_;
  connector::TestStore store_{pool_};
  std::vector<std::unique_ptr<Engine>> engines_;
};

TEST_F(EngineCommandTest, NoEngineIsSaidSo) {
  const CommandOutcome list = Run("");
  EXPECT_EQ(list.status, 0);
  EXPECT_THAT(list.out, HasSubstr("no engine's socket is served in " + directory_));
  const CommandOutcome counters = Run("counters");
  EXPECT_EQ(counters.status, 2);
  EXPECT_THAT(counters.out, HasSubstr("is an engine with KvcoveConnector running"));
}

TEST_F(EngineCommandTest, ListsEnginesWithoutASocketsPath) {
  StartEngine(4711, "step-7");
  StartEngine(4712);
  LeaveSocket(4713);
  for (const char* words : {"", "list"}) {
    const CommandOutcome list = Run(words);
    EXPECT_EQ(list.status, 0) << list.out;
    EXPECT_THAT(list.out, testing::ContainsRegex("4711 +step-7 +open +0 +0 +0B +0B"));
    EXPECT_THAT(list.out, testing::ContainsRegex("4712 +open +0 +0 +0B +0B"));
    EXPECT_THAT(list.out, Not(HasSubstr(Socket(4713))));
    EXPECT_THAT(list.out, HasSubstr("sockets of engines that have ended: 1;"));
  }
  const json all = json::parse(Run("--json").out);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0]["socket"], Socket(4711));
  EXPECT_EQ(all[0]["process"], "4711");
  EXPECT_TRUE(all[0]["answers"].get<bool>());
  EXPECT_EQ(all[0]["version"], "step-7");
  EXPECT_EQ(all[1]["version"], "");
  EXPECT_EQ(all[1]["lookups"], 0);
}

// A trainer names versions as it likes.
TEST_F(EngineCommandTest, AVersionMayBeAnyBytes) {
  StartEngine(4711, "step-\xFF");
  for (const char* words : {"--json", "counters --json"}) {
    const CommandOutcome outcome = Run(words);
    EXPECT_EQ(outcome.status, 0) << words;
    EXPECT_THAT(outcome.out, HasSubstr("\"step-\xEF\xBF\xBD\"")) << words;
  }
}

TEST_F(EngineCommandTest, ShowsEachOnesCounters) {
  StartEngine(4711, "step-7");
  const CommandOutcome one = Run("counters");
  EXPECT_EQ(one.status, 0);
  EXPECT_THAT(one.out, testing::StartsWith("version step-7\n"));
  EXPECT_THAT(one.out, HasSubstr("\nlookups 0\n"));
  EXPECT_EQ(json::parse(Run("counters --json").out)["version"], "step-7");
  StartEngine(4712);
  const CommandOutcome both = Run("counters");
  EXPECT_EQ(both.status, 0);
  EXPECT_THAT(both.out, HasSubstr(Socket(4711) + ":\nversion step-7\n"));
  EXPECT_THAT(both.out, HasSubstr(Socket(4712) + ":\nversion \n"));
  EXPECT_EQ(json::parse(Run("counters --json").out).size(), 2U);
}

TEST_F(EngineCommandTest, AnEngineIsNamedByItsProcessOrSocket) {
  StartEngine(4711, "step-7");
  StartEngine(4712, "step-8");
  for (const std::string& name :
       {std::string("4712"), Socket(4712), std::string("engine-0123456789abcdef-4712")}) {
    EXPECT_THAT(Run(name + " counters").out, testing::StartsWith("version step-8\n")) << name;
  }
  EXPECT_THAT(Run("4712").out, testing::StartsWith("version step-8\n"));
  const CommandOutcome nobody = Run("4713 counters");
  EXPECT_EQ(nobody.status, 2);
  EXPECT_THAT(nobody.out, HasSubstr("no engine '4713'"));
}

TEST_F(EngineCommandTest, AChangeIsForOneEngine) {
  StartEngine(4711);
  EXPECT_EQ(Run("reset").out, "reset\n");
  EXPECT_THAT(Run("counters").out, HasSubstr("\nresets_proven 1\n"));
  EXPECT_EQ(Run("weight-version step-9").out, "told\n");
  EXPECT_THAT(Run("counters").out, testing::StartsWith("version step-9\n"));
  StartEngine(4712);
  const CommandOutcome which = Run("reset");
  EXPECT_EQ(which.status, 2);
  EXPECT_THAT(which.out, HasSubstr("there are 2 engines; name one"));
  EXPECT_EQ(Run("4712 reset").out, "reset\n");
  EXPECT_THAT(Run("4711 counters").out, HasSubstr("\nresets_proven 1\n"));
  EXPECT_THAT(Run("4712 counters").out, HasSubstr("\nresets_proven 1\n"));
}

}  // namespace
}  // namespace kvcove
