// SPDX-License-Identifier: Apache-2.0
// Gets and puts, beside memcpy and a bare round trip.
#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "kvcove/base/random.h"
#include "lab/commands/bench.h"
#include "lab/commands/bench_local.h"

extern char** environ;

namespace kvcove::lab::local_bench {
namespace {

constexpr std::uint32_t kEchoRequestBytes = 4096 + 256;
constexpr std::uint32_t kEchoReplyBytes = 64;

std::uint64_t PageFaults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_minflt);
}

// What first reads cost another client, whose process has touched none of the pages: at once, with
// nothing mapped beforehand ("cold"); and 2 s after it attached ("first"), beside the same reads
// once more, after the client has read all keys (`all`) and the processor's caches hold others.
template <typename Round, typename All>
Status BenchFirstReads(const BenchOptions& options, Target& target, Round&& round, All&& all) {
  for (const std::string state : {"cold", "first"}) {
    const char* query = state == "cold" ? "?warm=off" : "?warm=all";
    KVCOVE_ASSIGN(auto pool, Pool::Open(target.daemon->address() + query, kTimeout));
    KVCOVE_ASSIGN(auto session, pool->OpenSession({.name = "bench", .engine = state}));
    if (state == "first") std::this_thread::sleep_for(std::chrono::seconds(2));
    std::swap(target.session, session);
    const std::uint64_t faults = PageFaults();
    Row row = round();
    row.extra["page_faults"] = PageFaults() - faults;
    all();
    const Row again = round();
    std::swap(target.session, session);
    row.state = state;
    row.extra["warm_p50_us"] = again.p50_us;
    row.extra["ratio_to_warm"] = again.p50_us / row.p50_us;
    Print(options, row);
  }
  return {};
}

// A process that answers each request of fixed size with a short one: a bare Unix-socket round
// trip.
class EchoProcess {
 public:
  static Result<std::unique_ptr<EchoProcess>> Start() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      return FailErrno(Code::kInternal, "socketpair");
    }
    auto echo = std::make_unique<EchoProcess>();
    echo->socket_ = UniqueFd(ends[0]);
    const UniqueFd theirs(fcntl(ends[1], F_DUPFD_CLOEXEC, 10));
    close(ends[1]);
    std::string self = cli::SelfPath();
    std::string name = "bench-echo";
    char* argv[] = {self.data(), name.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, theirs.get(), 3);
    const int failed = posix_spawn(&echo->pid_, argv[0], &actions, nullptr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) return Fail(Code::kInternal, "starting the echo process");
    return echo;
  }
  ~EchoProcess() {
    socket_.Reset();
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
  }
  void RoundTrip() {
    char request[kEchoRequestBytes] = {};
    char reply[kEchoReplyBytes];
    (void)!send(socket_.get(), request, sizeof(request), MSG_NOSIGNAL);
    (void)!recv(socket_.get(), reply, sizeof(reply), MSG_WAITALL);
  }

 private:
  UniqueFd socket_;
  pid_t pid_ = 0;
};

}  // namespace

Status BenchGet(const BenchOptions& options, const std::string& form, const Shape& shape) {
  KVCOVE_ASSIGN(Target target, Target::Open(form, shape.memory));
  const std::uint64_t objects = shape.memory / shape.object_bytes * 7 / 8;
  KVCOVE_TRY(Fill(*target.session, objects, shape.object_bytes));
  KVCOVE_ASSIGN(const PlainMemory plain, PlainMemory::Make(shape.memory));
  // Of whole pages, as an engine's KV memory is: where a buffer begins within its page changes the
  // time of a copy by a tenth, and the heap puts it anywhere.
  KVCOVE_ASSIGN(const PlainMemory buffer, PlainMemory::Make(shape.object_bytes * shape.batch));
  Random random(1);
  constexpr std::size_t kPicks = 64;
  std::vector<std::vector<std::uint64_t>> picks(kPicks);
  std::vector<std::vector<std::string>> keys(kPicks);
  for (std::size_t p = 0; p < kPicks; ++p) {
    for (std::uint64_t i = 0; i < shape.batch; ++i) {
      picks[p].push_back(random.Below(objects));
      keys[p].push_back(KeyOf(picks[p].back()));
    }
  }
  std::vector<MutableBuffer> pieces(shape.batch);
  std::vector<GetItem> items(shape.batch);
  std::vector<ItemResult> results(shape.batch);
  Status failed;
  const auto get = [&](std::size_t turn) {
    for (std::uint64_t i = 0; i < shape.batch; ++i) {
      pieces[i] = {.data = buffer.data() + i * shape.object_bytes, .size = shape.object_bytes};
      items[i] = {.key = keys[turn % kPicks][i], .into = {&pieces[i], 1}};
    }
    if (auto got = target.session->Get(items, results, {.timeout = kTimeout}); !got) failed = got;
    for (const ItemResult& result : results) {
      if (!result.ok()) failed = Fail(result.code, "a get of the benchmark failed");
    }
  };
  const auto copy = [&](std::size_t turn) {
    for (std::uint64_t i = 0; i < shape.batch; ++i) {
      std::memcpy(buffer.data() + i * shape.object_bytes,
                  plain.data() + picks[turn % kPicks][i] * shape.object_bytes, shape.object_bytes);
    }
  };
  const std::uint64_t bytes = shape.object_bytes * shape.batch;
  Row row{.bench = "get",
          .form = form,
          .objects = objects,
          .object_bytes = shape.object_bytes,
          .batch = shape.batch,
          .limit = "memcpy"};
  const auto all = [&] {
    for (std::size_t turn = 0; turn < kPicks; ++turn) {
      get(turn);
      copy(turn);
    }
  };
  if (form == "process" && shape.batch > 1) {
    const auto round = [&] {
      Row once = row;
      BenchOptions shortest = options;
      shortest.seconds = 0;
      Measure(shortest, once, bytes, get, copy);
      return once;
    };
    KVCOVE_TRY(BenchFirstReads(options, target, round, all));
  }
  all();  // warm both
  KVCOVE_TRY(failed);
  Measure(options, row, bytes, get, copy);
  KVCOVE_TRY(failed);
  Print(options, row);
  return {};
}

Result<int> RunEcho() {
  char request[kEchoRequestBytes];
  const char reply[kEchoReplyBytes] = {};
  while (recv(3, request, sizeof(request), MSG_WAITALL) == sizeof(request)) {
    (void)!send(3, reply, sizeof(reply), MSG_NOSIGNAL);
  }
  return 0;
}

Status BenchPut(const BenchOptions& options, const std::string& form, const Shape& shape) {
  KVCOVE_ASSIGN(Target target, Target::Open(form, shape.memory));
  KVCOVE_ASSIGN(const PlainMemory plain, PlainMemory::Make(shape.memory));
  KVCOVE_ASSIGN(const auto echo, EchoProcess::Start());
  const std::uint64_t bytes = shape.object_bytes * shape.batch;
  const std::vector<std::byte> values(bytes, std::byte{3});
  const std::uint64_t places = shape.memory / shape.object_bytes;
  // Full from the start, so that each put evicts; and every page of this process is touched.
  KVCOVE_TRY(Fill(*target.session, places, shape.object_bytes, 1ULL << 40));
  KVCOVE_ASSIGN(const Token token, target.session->Capture({}));
  std::vector<ConstBuffer> pieces(shape.batch);
  std::vector<PutItem> items(shape.batch);
  std::vector<ItemResult> results(shape.batch);
  std::vector<std::string> keys(shape.batch);
  std::uint64_t next = 0;
  Status failed;
  const auto prepare = [&] {
    for (std::uint64_t i = 0; i < shape.batch; ++i) {
      keys[i] = KeyOf(next++);
      pieces[i] = {.data = values.data() + i * shape.object_bytes, .size = shape.object_bytes};
      items[i] = {.key = keys[i], .value = {&pieces[i], 1}, .after = {}};
    }
  };
  prepare();
  const auto put = [&](std::size_t) {
    if (auto done = target.session->Put(token, items, results, {.timeout = kTimeout}); !done) {
      failed = done;
    }
    for (const ItemResult& result : results) {
      if (!result.ok()) failed = Fail(result.code, "a put of the benchmark failed");
    }
  };
  Random random(2);
  const bool small = shape.batch == 1 && shape.object_bytes <= 4096;
  const auto limit = [&](std::size_t) {
    if (small) {
      echo->RoundTrip();
    } else {
      const std::uint64_t from = random.Below(places - shape.batch);
      for (std::uint64_t i = 0; i < shape.batch; ++i) {
        std::memcpy(plain.data() + (from + i) * shape.object_bytes,
                    values.data() + i * shape.object_bytes, shape.object_bytes);
      }
    }
  };
  Row row{.bench = "put",
          .form = form,
          .objects = places,
          .object_bytes = shape.object_bytes,
          .batch = shape.batch,
          .limit = small ? "unix socket round trip" : "memcpy"};
  // Keys are made outside the timed part.
  std::vector<double> ours;
  std::vector<double> theirs;
  const std::int64_t until = Now() + static_cast<std::int64_t>(options.seconds * 1e9);
  while (Now() < until || ours.size() < 20) {
    std::int64_t start = Now();
    put(0);
    ours.push_back(static_cast<double>(Now() - start) / 1e3);
    prepare();
    start = Now();
    limit(0);
    theirs.push_back(static_cast<double>(Now() - start) / 1e3);
  }
  KVCOVE_TRY(failed);
  Summarize(row, bytes, ours, theirs);
  Print(options, row);
  return {};
}

}  // namespace kvcove::lab::local_bench
