// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/log.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <thread>
#include <utility>

#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/text.h"

namespace kvcove {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMaxQueuedBytes = 1 << 20;
constexpr milliseconds kPatienceAtEnd{100};

std::string_view NameOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarn:
      return "warning";
    case LogLevel::kError:
    case LogLevel::kOff:
      return "error";
  }
  return "error";
}

std::atomic<LogFormat> line_format = LogFormat::kText;
std::atomic<bool> files_may_hang = false;

// Returns the local time with its offset: logs of hosts in several zones are read side by side.
std::string TimeText() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm local{};
  localtime_r(&now.tv_sec, &local);
  const long offset_min = std::abs(local.tm_gmtoff) / 60;
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}{}{:02}:{:02}", local.tm_year + 1900,
                     local.tm_mon + 1, local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec,
                     now.tv_nsec / 1'000'000, local.tm_gmtoff < 0 ? '-' : '+', offset_min / 60,
                     offset_min % 60);
}

// Returns `text` as the inside of a JSON string.
std::string JsonText(std::string_view text) {
  std::string escaped;
  for (const char c : IsUtf8(text) ? std::string(text) : Printable(text)) {
    if (static_cast<unsigned char>(c) < 0x20) {
      escaped += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      if (c == '"' || c == '\\') escaped += '\\';
      escaped += c;
    }
  }
  return escaped;
}

std::string Formatted(LogLevel level, std::string_view line) {
  if (line_format.load(std::memory_order_relaxed) == LogFormat::kJson) {
    return fmt::format(R"({{"time":"{}","level":"{}","program":"kvcove","pid":{},"message":"{}"}})"
                       "\n",
                       TimeText(), NameOf(level), getpid(), JsonText(line));
  }
  return fmt::format("{} {} kvcove[{}] {}\n", TimeText(), NameOf(level), getpid(), line);
}

// As write(2), but never waits for a reader: EAGAIN where there is no room, or where that cannot be
// known.
ssize_t WriteWithoutWaiting(std::string_view text) {
  struct stat status{};
  if (fstat(STDERR_FILENO, &status) != 0) return -1;
  if (S_ISREG(status.st_mode)) {
    if (!files_may_hang.load(std::memory_order_relaxed)) {
      return write(STDERR_FILENO, text.data(), text.size());
    }
    errno = EAGAIN;
    return -1;
  }
  if (S_ISSOCK(status.st_mode)) {
    return send(STDERR_FILENO, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  const UniqueFd own(open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!own.valid()) {
    errno = EAGAIN;
    return -1;
  }
  return write(own.get(), text.data(), text.size());
}

class Log {
 public:
  // Never destroyed: threads may write lines while the process ends.
  static Log& Instance() {
    [[maybe_unused]] static const int registered =
        pthread_atfork(LockForFork, UnlockInParent, StartAnewInChild);
    return *Current();
  }

  void Write(std::string text) KVCOVE_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      if (!writing_) DrainWithoutWaiting();
      if (queued_bytes_ + text.size() > kMaxQueuedBytes) {
        Drop({});
        return;
      }
      TellDropped();
      Push({.text = std::move(text)});
      if (!writing_) DrainWithoutWaiting();
      if (queue_.empty()) return;
      changed_.NotifyAll();
      if (has_writer_) return;
      has_writer_ = true;
    }
    StartWriter();
  }

  bool Flush(milliseconds patience) KVCOVE_EXCLUDES(mutex_) {
    const auto until = std::chrono::steady_clock::now() + patience;
    const MutexLock lock(mutex_);
    while (!queue_.empty() || writing_) {
      if (!changed_.WaitUntil(mutex_, until) && std::chrono::steady_clock::now() >= until) {
        return false;
      }
    }
    return true;
  }

  std::uint64_t dropped() const { return dropped_; }

 private:
  // No other thread holds the lock while the process is copied.
  static void LockForFork() KVCOVE_ATTRIBUTE(no_thread_safety_analysis) {
    Current()->mutex_.lock();
  }
  static void UnlockInParent() KVCOVE_ATTRIBUTE(no_thread_safety_analysis) {
    Current()->mutex_.unlock();
  }
  static void StartAnewInChild() KVCOVE_ATTRIBUTE(no_thread_safety_analysis) {
    Current()->mutex_.unlock();
    // The thread, its waits and the queue are the parent's.
    Current() = new Log(Current());
  }
  static Log*& Current() {
    static Log* log = new Log(nullptr);
    return log;
  }
  explicit Log(Log* parents) : parents_(parents) {}

  struct Line {
    std::string text;
    std::uint64_t tells = 0;  // number of dropped lines that it reports
    std::size_t written = 0;  // bytes, which `text` may still have
    bool ends_torn = false;   // it begins with the end of a torn line
  };
  void Push(Line line) KVCOVE_REQUIRES(mutex_) {
    queued_bytes_ += line.text.size();
    queue_.push_back(std::move(line));
  }
  Line Pop() KVCOVE_REQUIRES(mutex_) {
    Line line = std::move(queue_.front());
    queue_.pop_front();
    queued_bytes_ -= line.text.size();
    return line;
  }
  void Drop(const Line& line) KVCOVE_REQUIRES(mutex_) {
    // The lines that it reports are counted already, and are to be reported again.
    untold_ += std::max<std::uint64_t>(line.tells, 1);
    if (line.tells == 0) ++dropped_;
    torn_ =
        torn_ || line.written > (line.ends_torn ? 1U : 0U) || (line.ends_torn && line.written == 0);
  }
  // Lets a line end the one before it, of which the disk had room for a part only.
  void EndTorn(Line& line) KVCOVE_REQUIRES(mutex_) {
    if (!std::exchange(torn_, false)) return;
    line.text.insert(0, 1, '\n');
    line.ends_torn = true;
  }
  void TellDropped() KVCOVE_REQUIRES(mutex_) {
    if (untold_ == 0) return;
    Push({.text = Formatted(LogLevel::kWarn,
                            fmt::format("{} lines dropped here: nobody read this log, or it could "
                                        "not be written, while they were due",
                                        untold_)),
          .tells = untold_});
    untold_ = 0;
  }

  void DrainWithoutWaiting() KVCOVE_REQUIRES(mutex_) {
    while (!queue_.empty()) {
      Line& line = queue_.front();
      queued_bytes_ -= line.text.size();
      EndTorn(line);
      queued_bytes_ += line.text.size();
      std::string& text = line.text;
      const ssize_t written = WriteWithoutWaiting(text);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0 && errno == EAGAIN) return;
      if (written < 0) {
        Drop(Pop());
      } else if (static_cast<std::size_t>(written) == text.size()) {
        Pop();
      } else {
        text.erase(0, static_cast<std::size_t>(written));
        queued_bytes_ -= static_cast<std::size_t>(written);
        line.written += static_cast<std::size_t>(written);
      }
    }
  }

  void StartWriter() KVCOVE_EXCLUDES(mutex_) {
    // Registered once, also where a forked child has a thread of its own.
    [[maybe_unused]] static const int registered =
        std::atexit([] { Instance().Flush(kPatienceAtEnd); });
    Result<std::thread> writer = StartThread("kvcove-log", [this] { RunWriter(); });
    if (writer) return writer->detach();
    // The next line tries again.
    const MutexLock lock(mutex_);
    has_writer_ = false;
  }

  void RunWriter() KVCOVE_EXCLUDES(mutex_) {
    bool written = true;
    while (true) {
      Line line;
      {
        const MutexLock lock(mutex_);
        writing_ = false;
        while (queue_.empty()) {
          // Where nothing can be written, the next line tries again, and not this thread at once.
          if (written) TellDropped();
          if (!queue_.empty()) break;
          changed_.NotifyAll();
          changed_.Wait(mutex_);
        }
        line = Pop();
        EndTorn(line);
        writing_ = true;
      }
      const std::size_t bytes = WriteAndWait(line.text);
      written = bytes == line.text.size();
      if (written) continue;
      line.written += bytes;
      const MutexLock lock(mutex_);
      Drop(line);
    }
  }

  // Returns how many bytes were written: fewer than all after an error.
  static std::size_t WriteAndWait(std::string_view text) {
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t written = write(STDERR_FILENO, text.data() + done, text.size() - done);
      if (written > 0) done += static_cast<std::size_t>(written);
      if (written >= 0 || errno == EINTR) continue;
      if (errno != EAGAIN) return done;
      // Another process made stderr non-blocking.
      pollfd room{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
      (void)poll(&room, 1, -1);
    }
    return done;
  }

  [[maybe_unused]] Log* const parents_;  // reachable, so that it is no leak
  Mutex mutex_;
  CondVar changed_;
  std::deque<Line> queue_ KVCOVE_GUARDED_BY(mutex_);
  std::size_t queued_bytes_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t untold_ KVCOVE_GUARDED_BY(mutex_) = 0;  // dropped, and no line says so yet
  bool torn_ KVCOVE_GUARDED_BY(mutex_) = false;         // the last line that was begun has no end
  bool has_writer_ KVCOVE_GUARDED_BY(mutex_) = false;
  // The thread writes a line that it has taken from the queue: none may overtake it.
  bool writing_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::atomic<std::uint64_t> dropped_ = 0;
};

std::atomic<LogLevel> lowest_level = LogLevel::kInfo;

// Where LogToFile has sent stderr; never destroyed, as the log itself.
struct LogFile {
  Mutex mutex;
  std::string path KVCOVE_GUARDED_BY(mutex);
};
LogFile& File() {
  static LogFile* const file = new LogFile;
  return *file;
}

// O_NONBLOCK: a pipe without a reader is an error instead of a wait.
Status OpenAsStderr(const std::string& path) {
  const UniqueFd file(
      open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0640));
  if (!file.valid()) return FailErrno(Code::kInvalid, fmt::format("opening the log '{}'", path));
  struct stat status{};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return Fail(Code::kInvalid, fmt::format("the log '{}' is no regular file", path));
  }
  // In one step: another thread that writes a line now finds the one file or the other.
  if (dup2(file.get(), STDERR_FILENO) < 0) {
    return FailErrno(Code::kInternal, fmt::format("using '{}' as stderr", path));
  }
  return {};
}

}  // namespace

void SetLogLevel(LogLevel level) { lowest_level = level; }

Result<LogLevel> ParseLogLevel(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warn") return LogLevel::kWarn;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  return Fail(Code::kInvalid,
              fmt::format("'{}' is not a log level; use debug, info, warn, error or off", name));
}

void SetLogFormat(LogFormat format) { line_format = format; }

Result<LogFormat> ParseLogFormat(std::string_view name) {
  if (name == "text") return LogFormat::kText;
  if (name == "json") return LogFormat::kJson;
  return Fail(Code::kInvalid, fmt::format("'{}' is not a log format; use text or json", name));
}

Status LogToFile(const std::string& path) {
  KVCOVE_TRY(OpenAsStderr(path));
  const MutexLock lock(File().mutex);
  File().path = path;
  return {};
}

Status ReopenLogFile() {
  std::string path;
  {
    const MutexLock lock(File().mutex);
    path = File().path;
  }
  return path.empty() ? Status() : OpenAsStderr(path);
}

void LeaveLogToItsThread() { files_may_hang = true; }

void LogLine(LogLevel level, const std::string& line) {
  // Also for lines that the level leaves out: a test at any level finds them all.
  ExpectNoLock("a log line");
  if (level >= lowest_level.load(std::memory_order_relaxed))
    Log::Instance().Write(Formatted(level, line));
}

void WriteStderr(const std::string& line) {
  const bool as_it_is = line_format.load(std::memory_order_relaxed) == LogFormat::kText;
  Log::Instance().Write(as_it_is ? line + "\n" : Formatted(LogLevel::kError, line));
}

bool FlushLog(milliseconds patience) { return Log::Instance().Flush(patience); }

std::uint64_t LogLinesDropped() { return Log::Instance().dropped(); }

}  // namespace kvcove
