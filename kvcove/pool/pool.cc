// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/pool.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>

#include "kvcove/base/clock.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/random.h"
#include "kvcove/pool/connection.h"

namespace kvcove {

std::string DefaultSocketPath() {
  if (const char* path = std::getenv("KVCOVE_SOCKET"); path != nullptr && *path != '\0') {
    return path;
  }
  // A relative path would name another socket in each working directory. The XDG Base Directory
  // Specification says to ignore it.
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime == '/') {
    return fmt::format("{}/kvcove/kvcove.sock", runtime);
  }
  return fmt::format("/tmp/kvcove-{}/kvcove.sock", getuid());
}

Pool::Pool(std::unique_ptr<pool::Connection> connection)
    : forks_(ForkCount()), connection_(std::move(connection)) {}

Pool::~Pool() {
  // A forked child has neither the connection's threads nor the threads that may hold its locks, so
  // it leaks the connection: to end it could wait for ever.
  if (forks_ != ForkCount()) (void)connection_.release();
}

Result<std::unique_ptr<Pool>> Pool::Open(std::string_view address,
                                         std::chrono::milliseconds timeout) {
  ForkCount();  // from now on forks are counted
  OpenStandardStreams();
  KVCOVE_ASSIGN(auto connection, pool::OpenConnection(address, timeout));
  return std::unique_ptr<Pool>(new Pool(std::move(connection)));
}

Status Pool::CheckProcess() const {
  if (forks_ == ForkCount()) return {};
  return Fail(Code::kUnavailable,
              "this process was forked after the pool was opened; open the "
              "pool again in the child");
}

Result<SessionPtr> Pool::OpenSession(const SessionOptions& given) {
  KVCOVE_TRY(CheckProcess());
  if (given.name.empty()) {
    return Fail(Code::kInvalid,
                "a session needs the name of a namespace, such as model@revision/dtype: values are "
                "shared by the sessions of one name");
  }
  KVCOVE_TRY(CheckName(given.name, "namespace"));
  KVCOVE_TRY(CheckName(given.engine, "engine"));
  SessionOptions options = given;
  if (options.engine.empty()) options.engine = "session-" + ToHex(RandomId());
  return connection_->OpenSession(options);
}

Result<PoolStat> Pool::Stat(std::chrono::milliseconds timeout) {
  KVCOVE_TRY(CheckProcess());
  return connection_->Stat(SystemClock::Instance().NowNs() + timeout.count() * kMillisecond);
}

PoolSettings Pool::Settings() const {
  return CheckProcess() ? connection_->Settings() : PoolSettings();
}

std::string_view Pool::form() const { return connection_->form(); }

Result<std::shared_ptr<void>> Pool::Register(std::span<std::byte> memory) {
  KVCOVE_TRY(CheckProcess());
  return connection_->Register(memory);
}

bool Pool::WaitPopulated(std::chrono::milliseconds timeout) {
  const Clock& clock = SystemClock::Instance();
  const std::int64_t deadline_ns = clock.NowNs() + timeout.count() * kMillisecond;
  while (LeftNs(deadline_ns, clock) > 0) {
    const auto stat = Stat();
    if (stat && stat->populated_bytes == stat->payload_bytes) return true;
    SleepNs(10 * kMillisecond);
  }
  return false;
}

}  // namespace kvcove
