// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <vector>

#include "kvcove/base/posix.h"

namespace kvcove {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr char kFilling = '#';
constexpr milliseconds kPatience{60'000};

// stderr is a pipe while this lives. A test must read what it has written before the end of this:
// the log's thread would wait in write() for ever.
class PipeAsStderr {
 public:
  PipeAsStderr() : before_(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    read_end_ = UniqueFd(ends[0]);
    EXPECT_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    close(ends[1]);
    SetLogLevel(LogLevel::kInfo);
  }
  ~PipeAsStderr() { dup2(before_.get(), STDERR_FILENO); }

  // No write of a single byte finds room afterwards.
  void Fill() {
    fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK);
    while (write(STDERR_FILENO, &kFilling, 1) == 1) {
    }
    fcntl(STDERR_FILENO, F_SETFL, 0);
  }
  // What has been written until now, without what filled the pipe.
  std::string Read() {
    fcntl(read_end_.get(), F_SETFL, O_NONBLOCK);
    std::string text(1 << 20, '\0');
    const ssize_t got = read(read_end_.get(), text.data(), text.size());
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    std::erase(text, kFilling);
    return text;
  }
  void CloseReader() { read_end_.Reset(); }
  // Reads until all that is queued has been written.
  std::string ReadAll() {
    std::string text;
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (!FlushLog(milliseconds(1)) && std::chrono::steady_clock::now() < until) text += Read();
    return text + Read();
  }

 private:
  UniqueFd before_;
  UniqueFd read_end_;
};

bool is_child = false;

std::size_t Threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

// In a process of its own, without the threads of this one. Its exit status.
template <typename Child>
int InChild(const Child& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    is_child = true;
    std::exit(child());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(LogTest, ALineThatFindsRoomIsOutBeforeTheCallReturnsAndStartsNoThread) {
  PipeAsStderr pipe;
  const int more_threads = InChild([&] {
    const std::size_t before = Threads();  // the thread sanitizer has one of its own
    LogInfo("all is {}", "well");
    return pipe.Read().contains(" info kvcove[") ? static_cast<int>(Threads() - before) : -1;
  });
  EXPECT_EQ(more_threads, 0);
}

TEST(LogTest, ATimeHasItsOffset) {
  PipeAsStderr pipe;
  const int as_expected = InChild([&] {
    setenv("TZ", "<-0330>3:30", /*replace=*/1);
    tzset();
    LogInfo("in Newfoundland");
    return std::regex_search(
        pipe.Read(), std::regex(R"(^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}-03:30 info kvcove\[)"));
  });
  EXPECT_EQ(as_expected, 1);
}

TEST(LogTest, AJsonLineHoldsTheLineWhateverItsBytes) {
  PipeAsStderr pipe;
  SetLogFormat(LogFormat::kJson);
  LogWarn("a \"key\"\\ with\ttabs\n and ümlauts");
  LogWarn("no UTF-8: {}", "\xff");
  WriteStderr("kvcove: the last words");
  SetLogFormat(LogFormat::kText);
  const std::string text = pipe.Read();
  EXPECT_THAT(text, HasSubstr(fmt::format("\"level\":\"warning\",\"program\":\"kvcove\",\"pid\":{},"
                                          "\"message\":\"a \\\"key\\\"\\\\ with\\u0009tabs\\u000a "
                                          "and ümlauts\"}}\n",
                                          getpid())));
  EXPECT_THAT(text, HasSubstr("\\xff"));
  EXPECT_EQ(text.find('\xff'), std::string::npos);
  EXPECT_THAT(text, HasSubstr("\"level\":\"error\",\"program\":\"kvcove\",\"pid\":"));
  EXPECT_THAT(text, HasSubstr(",\"message\":\"kvcove: the last words\"}\n"));
  EXPECT_EQ(std::ranges::count(text, '\n'), 3);
}

TEST(LogTest, AFileThatWasMovedAwayIsReplacedWhenItIsOpenedAgain) {
  const PipeAsStderr restores_stderr;
  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() / fmt::format("kvcove-log-{}", getpid());
  std::filesystem::create_directory(directory);
  const std::filesystem::path log = directory / "log";
  const std::filesystem::path moved = directory / "log.1";
  const auto has = [](const std::filesystem::path& file, const char* line) {
    std::ifstream in(file);
    return std::string(std::istreambuf_iterator<char>(in), {}).contains(line);
  };
  ASSERT_TRUE(LogToFile(log));
  LogInfo("first");
  std::filesystem::rename(log, moved);
  LogInfo("second");
  EXPECT_TRUE(has(moved, "first"));
  EXPECT_TRUE(has(moved, "second"));
  ASSERT_TRUE(ReopenLogFile());
  LogInfo("third");
  EXPECT_TRUE(has(log, "third"));
  EXPECT_FALSE(has(moved, "third"));

  // Where it cannot be opened again, the log goes on as it was.
  std::filesystem::remove(log);
  std::filesystem::create_directory(log);
  EXPECT_FALSE(ReopenLogFile());
  std::filesystem::remove(log);
  ASSERT_EQ(mkfifo(log.c_str(), 0600), 0);
  EXPECT_FALSE(ReopenLogFile());
  EXPECT_FALSE(LogToFile(directory / "none" / "log"));
  std::filesystem::remove_all(directory);
}

TEST(LogTest, AFileIsWrittenByTheLogsThreadAloneWhereItMayHang) {
  const std::string path = std::filesystem::temp_directory_path() / "kvcove-log-left-to-its-thread";
  const int threads = InChild([&] {
    const auto log_threads = [] {
      int found = 0;
      for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream name(task.path() / "comm");
        if (std::string line; std::getline(name, line) && line == "kvcove-log") ++found;
      }
      return found;
    };
    if (!LogToFile(path)) return -1;
    SetLogLevel(LogLevel::kInfo);
    LogInfo("in the caller's thread");
    if (log_threads() != 0) return -2;
    LeaveLogToItsThread();
    LogInfo("in its own");
    LogInfo("behind it");
    return FlushLog(kPatience) ? log_threads() : -3;
  });
  EXPECT_EQ(threads, 1);
  std::ifstream file(path);
  const std::string written((std::istreambuf_iterator<char>(file)), {});
  EXPECT_TRUE(std::regex_search(
      written, std::regex("in the caller's thread\n.* in its own\n.* behind it\n$")))
      << written;
  std::filesystem::remove(path);
}

TEST(LogTest, LinesThatADiskHadNoRoomForAreCountedWhereTheLogContinues) {
  PipeAsStderr pipe;
  const UniqueFd room(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  const UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.valid());
  const std::uint64_t dropped_before = LogLinesDropped();
  dup2(full.get(), STDERR_FILENO);
  for (int i = 0; i < 3; ++i) LogInfo("no room");
  dup2(room.get(), STDERR_FILENO);
  EXPECT_EQ(LogLinesDropped() - dropped_before, 3U);
  LogInfo("room");
  const std::string text = pipe.Read();
  EXPECT_THAT(text, HasSubstr(" 3 lines dropped here"));
  EXPECT_LT(text.find("dropped here"), text.find("] room\n"));
}

// Else a reader of JSON lines loses the line behind the torn one, too.
TEST(LogTest, ALineBehindOneThatTheDiskHadRoomForAPartOfBeginsOnItsOwn) {
  std::string path = std::filesystem::temp_directory_path() / "kvcove-log-XXXXXX";
  const UniqueFd file(mkostemp(path.data(), O_APPEND | O_CLOEXEC));
  ASSERT_TRUE(file.valid());
  EXPECT_EQ(InChild([&] {
              dup2(file.get(), STDERR_FILENO);
              SetLogLevel(LogLevel::kInfo);
              std::signal(SIGXFSZ, SIG_IGN);
              LogInfo("first");
              rlimit room{};
              getrlimit(RLIMIT_FSIZE, &room);
              const rlim_t before = room.rlim_cur;
              room.rlim_cur = std::filesystem::file_size(path) + 20;
              setrlimit(RLIMIT_FSIZE, &room);
              LogInfo("torn");
              LogInfo("lost");
              room.rlim_cur = before;
              setrlimit(RLIMIT_FSIZE, &room);
              LogInfo("last");
              return 0;
            }),
            0);
  std::vector<std::string> lines;
  std::ifstream log(path);
  for (std::string line; std::getline(log, line);) lines.push_back(line);
  std::filesystem::remove(path);
  EXPECT_THAT(lines, testing::ElementsAre(testing::EndsWith("] first"), testing::SizeIs(20),
                                          HasSubstr("] 2 lines dropped here"),
                                          testing::EndsWith("] last")));
}

TEST(LogTest, AReaderThatEndsLeavesTheLogsThreadIdle) {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  {
    PipeAsStderr pipe;
    pipe.Fill();
    LogInfo("nobody reads this");
    pipe.CloseReader();
    EXPECT_TRUE(FlushLog(kPatience));
  }
  std::signal(SIGPIPE, before);
  PipeAsStderr pipe;
  LogInfo("another reader");
  EXPECT_THAT(pipe.Read(), HasSubstr(" 1 lines dropped here"));
}

TEST(LogTest, AFullPipeStopsNoCallerAndTheDroppedLinesAreCounted) {
  PipeAsStderr pipe;
  pipe.Fill();
  constexpr std::uint64_t kLines = 30'000;  // more than fit into the queue
  const std::uint64_t dropped_before = LogLinesDropped();
  for (std::uint64_t i = 0; i < kLines; ++i) LogWarn("line {:06} of many that nobody reads", i);
  const std::uint64_t dropped = LogLinesDropped() - dropped_before;
  EXPECT_GT(dropped, 0U);
  EXPECT_LT(dropped, kLines);
  EXPECT_FALSE(FlushLog(milliseconds(0)));

  const std::string text = pipe.ReadAll();
  EXPECT_THAT(text, HasSubstr("line 000000 of"));
  EXPECT_THAT(text, HasSubstr(fmt::format("{} lines dropped here", dropped)));
  const auto lines = static_cast<std::uint64_t>(std::ranges::count(text, '\n'));
  EXPECT_EQ(lines, kLines - dropped + 1);
  LogInfo("read again");
  EXPECT_THAT(pipe.ReadAll(), HasSubstr("read again"));
}

TEST(LogTest, ALineLongerThanThePipeArrivesWhole) {
  PipeAsStderr pipe;
  const std::string line(300'000, 'x');
  LogInfo("{}", line);
  LogInfo("behind it");
  EXPECT_THAT(pipe.ReadAll(), testing::ContainsRegex(" x+\n.* behind it\n"));
}

TEST(LogTest, AForkedChildWritesItsOwnLinesAndNoneOfItsParents) {
  PipeAsStderr pipe;
  pipe.Fill();
  LogInfo("the parent's");
  const std::string path = testing::TempDir() + fmt::format("kvcove-log-{}", getpid());
  EXPECT_EQ(InChild([&] {
              const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
              dup2(file, STDERR_FILENO);
              LogInfo("the child's");
              return 0;
            }),
            0);
  EXPECT_THAT(pipe.ReadAll(), testing::ContainsRegex("^[^\n]* the parent's\n$"));
  std::string written(1000, '\0');
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const ssize_t size = read(file.get(), written.data(), written.size());
  ASSERT_GT(size, 0);
  written.resize(static_cast<std::size_t>(size));
  EXPECT_THAT(written, testing::ContainsRegex("^[^\n]* the child's\n$"));
  std::filesystem::remove(path);
}

TEST(LogTest, AProcessEndsThoughNobodyReadsItsLog) {
  PipeAsStderr pipe;
  pipe.Fill();
  EXPECT_EQ(InChild([] {
              LogInfo("unread");
              return 7;
            }),
            7);
  (void)pipe.Read();
}

}  // namespace
}  // namespace kvcove

// The leak sanitizer asks it. It would write to the children's stderr, which nobody may read, and
// takes what the parent's threads hold for lost.
extern "C" int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return kvcove::is_child ? 1 : 0; }
