// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "kvcove/base/posix.h"

extern char** environ;

namespace kvcove::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// This process's environment, with what is added in its place.
std::vector<std::string> EnvironmentWith(
    const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> all;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    bool replaced = false;
    for (const auto& [name, value] : added) {
      replaced =
          replaced || (entry.starts_with(name) && entry.substr(name.size()).starts_with('='));
    }
    if (!replaced) all.emplace_back(entry);
  }
  for (const auto& [name, value] : added) all.push_back(fmt::format("{}={}", name, value));
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Between fork and exec; returns only when that failed, with errno.
void Become(const ProcessOptions& options, pid_t parent, char** words, char** environment) {
  if (options.own_session) setsid();
  if (options.end_signal != 0) {
    prctl(PR_SET_PDEATHSIG, options.end_signal);
    if (getppid() != parent) _exit(127);  // it has ended already
  }
  if (options.output >= 0) {
    dup2(options.output, STDOUT_FILENO);
    dup2(options.output, STDERR_FILENO);
  }
  // dup2 onto itself does nothing: exec would close it.
  if (options.passed == kPassedFd) fcntl(kPassedFd, F_SETFD, 0);
  if (options.passed >= 0 && options.passed != kPassedFd) dup2(options.passed, kPassedFd);
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvpe(words[0], words, environment);
}

}  // namespace

Result<Process> Process::Start(const ProcessOptions& options) {
  std::vector<std::string> words = options.words;
  std::vector<std::string> environment = EnvironmentWith(options.environment);
  const std::vector<char*> word_pointers = Pointers(words);
  const std::vector<char*> environment_pointers = Pointers(environment);
  // Closed by exec; else it tells why there was none.
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return FailErrno(Code::kInternal, "making a pipe");
  UniqueFd read_end(ends[0]);
  UniqueFd low(ends[1]);
  // Out of the way of what the child's descriptors become.
  UniqueFd write_end(fcntl(low.get(), F_DUPFD_CLOEXEC, kPassedFd + 1));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return FailErrno(Code::kInternal, "starting a process");
  if (pid == 0) {
    Become(options, parent, const_cast<char**>(word_pointers.data()),
           const_cast<char**>(environment_pointers.data()));
    const int why = errno;
    (void)!write(write_end.get(), &why, sizeof(why));
    _exit(127);
  }
  low.Reset();
  write_end.Reset();
  int why = 0;
  ssize_t got = 0;
  do {
    got = read(read_end.get(), &why, sizeof(why));
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return Process(pid);
  waitpid(pid, nullptr, 0);
  return Fail(why == ENOENT ? Code::kInvalid : Code::kDenied,
              fmt::format("'{}' cannot be run: {}", options.words.front(), std::strerror(why)));
}

std::optional<int> Process::Status() {
  if (status_ || pid_ == 0) return status_;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return status_;
}

std::optional<int> Process::WaitFor(milliseconds duration) {
  const auto until = steady_clock::now() + duration;
  while (!Status() && steady_clock::now() < until) std::this_thread::sleep_for(milliseconds(2));
  return Status();
}

void Process::Signal(int number) {
  // Once it is waited for, the number may be another process's.
  if (!Status()) kill(pid_, number);
}

int Process::End(milliseconds patience, int number) {
  Signal(number);
  if (!WaitFor(patience)) Signal(SIGKILL);
  while (!Status()) std::this_thread::sleep_for(milliseconds(2));
  return *Status();
}

}  // namespace kvcove::cli
