// SPDX-License-Identifier: Apache-2.0
// Engines in processes of their own: a socket pair carries request numbers one way and records the
// other. Both ends are the same program, so the records are plain memory.
#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "kvcove/base/posix.h"
#include "lab/replay/replay.h"

extern char** environ;

namespace kvcove::lab {
namespace {

constexpr std::uint32_t kUpdate = 0xFFFFFFFF;

struct Answer {
  Served served;
  std::uint32_t ok = 1;
  std::uint32_t unused = 0;
};

Status WriteAll(int fd, const void* data, std::size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t count = send(fd, bytes, size, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return FailErrno(Code::kUnavailable, "writing to an engine's socket");
    bytes += count;
    size -= static_cast<std::size_t>(count);
  }
  return {};
}

Status ReadAll(int fd, void* data, std::size_t size) {
  auto* bytes = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t count = read(fd, bytes, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Fail(Code::kUnavailable, "an engine's process ended");
    bytes += count;
    size -= static_cast<std::size_t>(count);
  }
  return {};
}

class ProcessLink final : public EngineLink {
 public:
  ProcessLink(UniqueFd socket, pid_t pid) : socket_(std::move(socket)), pid_(pid) {}
  ~ProcessLink() override {
    socket_.Reset();  // ends it
    waitpid(pid_, nullptr, 0);
  }
  Status Send(std::uint32_t request) override {
    return WriteAll(socket_.get(), &request, sizeof(request));
  }
  Status SendUpdate() override { return Send(kUpdate); }
  Result<Served> Receive(bool& update_ok) override {
    Answer answer;
    KVCOVE_TRY(ReadAll(socket_.get(), &answer, sizeof(answer)));
    update_ok = answer.ok != 0;
    return answer.served;
  }

 private:
  UniqueFd socket_;
  pid_t pid_;
};

}  // namespace

Result<std::unique_ptr<EngineLink>> StartEngineProcess(const std::vector<std::string>& arguments) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return FailErrno(Code::kInternal, "socketpair");
  }
  UniqueFd mine(ends[0]);
  UniqueFd theirs(
      fcntl(ends[1], F_DUPFD_CLOEXEC, 10));  // never the number that it gets in the child
  close(ends[1]);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), kEngineSocket);
  pid_t pid = 0;
  const int failed = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    errno = failed;
    return FailErrno(Code::kInternal, "starting an engine's process");
  }
  return std::make_unique<ProcessLink>(std::move(mine), pid);
}

Status ServeEngine(Engine& engine, const std::vector<Request>& requests, int socket) {
  while (true) {
    std::uint32_t number = 0;
    if (!ReadAll(socket, &number, sizeof(number))) return {};  // the driver is done
    Answer answer;
    if (number == kUpdate) {
      answer.ok = engine.UpdateWeights(answer.served) ? 1 : 0;
    } else if (number < requests.size()) {
      answer.served = engine.Serve(number, requests[number]);
    } else {
      return Fail(Code::kInvalid, "a request that is not in the trace");
    }
    KVCOVE_TRY(WriteAll(socket, &answer, sizeof(answer)));
  }
}

}  // namespace kvcove::lab
