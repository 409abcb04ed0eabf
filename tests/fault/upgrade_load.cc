// SPDX-License-Identifier: Apache-2.0
// How long an upgrade takes for those that use the pool meanwhile: a `kvcove serve` with many
// objects, readers and a writer as processes of their own, and one upgrade after the other. Prints
// a JSON line; ends with 1 where a read failed, an upgrade did not happen, something leaked, or,
// without --no-limits, a call took longer than it may (get 100 ms, put 500 ms).
//
//   upgrade_load --kvcove PATH [--objects N] [--upgrades N] [--readers N] [--no-limits]
#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/base/random.h"
#include "kvcove/pool/pool.h"
#include "tests/fault/take_over.h"

extern char** environ;

namespace kvcove {
namespace {

struct Flags {
  std::string kvcove;
  std::uint64_t objects = 1'000'000;
  int upgrades = 20;
  int readers = 4;
  bool limits = true;
};

// Shared by the processes.
struct Shared {
  std::atomic<bool> stop{false};
  std::atomic<int> ready{0};
  std::atomic<std::uint64_t> gets{0};
  std::atomic<std::uint64_t> failed_gets{0};
  std::atomic<std::uint64_t> puts{0};
  std::atomic<std::uint64_t> failed_puts{0};
  std::atomic<std::int64_t> longest_get_ns{0};
  std::atomic<std::int64_t> longest_put_ns{0};
};

constexpr int kLateUpgrades = 3;

std::int64_t Now() { return SystemClock::Instance().NowNs(); }

void Raise(std::atomic<std::int64_t>& longest, std::int64_t ns) {
  std::int64_t before = longest.load();
  while (before < ns && !longest.compare_exchange_weak(before, ns)) {
  }
}

std::string ValueOf(std::uint64_t number) { return fmt::format("value-{:020}", number); }

Code Put(Session& session, const std::string& key, const std::string& value) {
  const ConstBuffer piece{.data = value.data(), .size = value.size()};
  const PutItem item{.key = key, .value = {&piece, 1}, .after = {}};
  ItemResult result;
  (void)session.Put({&item, 1}, {&result, 1}, {});
  return result.code;
}

SessionPtr Open(const std::string& address, std::unique_ptr<Pool>& pool) {
  pool = *Pool::Open(address, std::chrono::seconds(5));
  return *pool->OpenSession({.name = "load", .engine = "e"});
}

void Read(const std::string& address, const Flags& flags, Shared& shared, std::uint64_t seed) {
  std::unique_ptr<Pool> pool;
  const SessionPtr session = Open(address, pool);
  Random random(seed);
  std::string value(64, '\0');
  ++shared.ready;
  while (!shared.stop) {
    const std::uint64_t number = random.Next() % flags.objects;
    const std::string key = fmt::format("k{}", number);
    const MutableBuffer piece{.data = value.data(), .size = value.size()};
    const GetItem item{.key = key, .into = {&piece, 1}};
    ItemResult result;
    const std::int64_t begin = Now();
    (void)session->Get({&item, 1}, {&result, 1}, {});
    Raise(shared.longest_get_ns, Now() - begin);
    ++shared.gets;
    if (!result.ok() || std::string_view(value.data(), result.bytes) != ValueOf(number)) {
      if (++shared.failed_gets <= 5) {
        fmt::print(stderr, "get {}: code {}, reason {}\n", key, static_cast<int>(result.code),
                   static_cast<int>(result.reason));
      }
    }
  }
}

// Some thousand objects beside those that are read.
void Write(const std::string& address, Shared& shared) {
  std::unique_ptr<Pool> pool;
  const SessionPtr session = Open(address, pool);
  ++shared.ready;
  for (std::uint64_t i = 0; !shared.stop; ++i) {
    const std::int64_t begin = Now();
    const Code code = Put(*session, fmt::format("w{}", i), ValueOf(i));
    Raise(shared.longest_put_ns, Now() - begin);
    ++shared.puts;
    if (code != Code::kOk && ++shared.failed_puts <= 5) {
      fmt::print(stderr, "put w{}: code {}\n", i, static_cast<int>(code));
    }
    if (i < 10'000) continue;
    const std::string old = fmt::format("w{}", i - 10'000);
    const std::string_view view = old;
    ItemResult result;
    (void)session->Remove({&view, 1}, {&result, 1}, {});
  }
}

template <typename Body>
pid_t Fork(const Body& body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  body();
  _exit(0);
}

// Starts a process that takes over and logs to the file `log`; without one, the first process.
pid_t Serve(const Flags& flags, const std::string& socket, const std::string& log = {}) {
  const std::string objects = std::to_string(flags.objects + 100'000);
  const std::string memory = fmt::format("{}MiB", 64 + (flags.objects / 8192));
  std::vector<const char*> words = {
      flags.kvcove.c_str(), "--log",    "warn",         "serve",         "--socket",
      socket.c_str(),       "--memory", memory.c_str(), "--max-objects", objects.c_str()};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (!log.empty()) {
    words.push_back("--take-over");
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
  }
  words.push_back(nullptr);
  pid_t pid = 0;
  if (posix_spawn(&pid, flags.kvcove.c_str(), &actions, nullptr, const_cast<char**>(words.data()),
                  environ) != 0) {
    fmt::print(stderr, "'{}' cannot be started\n", flags.kvcove);
    std::exit(2);
  }
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

std::size_t CountIn(const std::string& directory) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(directory),
                                                std::filesystem::directory_iterator()));
}

struct Footprint {
  std::uint64_t anonymous_kib = 0;
  std::size_t descriptors = 0;
  std::size_t mappings = 0;
};

Footprint FootprintOf(pid_t pid) {
  Footprint footprint{.descriptors = CountIn(fmt::format("/proc/{}/fd", pid))};
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) footprint.anonymous_kib = std::stoull(line.substr(8));
  }
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);) {
    footprint.mappings += line.contains("memfd:kvcove") ? 1 : 0;
  }
  return footprint;
}

bool Fill(const std::string& address, const Flags& flags) {
  std::unique_ptr<Pool> pool;
  const SessionPtr session = Open(address, pool);
  constexpr std::uint64_t kBatch = 1000;
  for (std::uint64_t i = 0; i < flags.objects; i += kBatch) {
    std::vector<std::string> keys;
    std::vector<std::string> values;
    for (std::uint64_t k = i; k < std::min(i + kBatch, flags.objects); ++k) {
      keys.push_back(fmt::format("k{}", k));
      values.push_back(ValueOf(k));
    }
    std::vector<ConstBuffer> pieces;
    for (const std::string& value : values) pieces.push_back({value.data(), value.size()});
    std::vector<PutItem> items;
    for (std::size_t k = 0; k < keys.size(); ++k) {
      items.push_back({.key = keys[k], .value = {&pieces[k], 1}, .after = {}});
    }
    std::vector<ItemResult> results(items.size());
    (void)session->Put(items, results, {.timeout = std::chrono::seconds(5)});
    for (const ItemResult& result : results) {
      if (result.ok()) continue;
      fmt::print(stderr, "filling failed with code {}\n", static_cast<int>(result.code));
      return false;
    }
  }
  return true;
}

// Once the policy has met most of what is read: its memory grows until then, with or without
// upgrades.
Footprint Settled(pid_t pid) {
  Footprint last = FootprintOf(pid);
  for (int i = 0; i < 60; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const Footprint now = FootprintOf(pid);
    if (now.anonymous_kib < last.anonymous_kib + (last.anonymous_kib / 50)) return now;
    last = now;
  }
  return last;
}

// A connection that its end has just closed is there for a moment longer; a leak stays.
Footprint Ended(pid_t pid, const Footprint& first) {
  Footprint last = FootprintOf(pid);
  for (int i = 0; i < 100; ++i) {
    if (last.descriptors <= first.descriptors && last.mappings <= first.mappings) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    last = FootprintOf(pid);
  }
  return last;
}

// Upgrades until all are done; the process that serves at last. Where the machine stood still, the
// old process refuses the new one, or kills it in time, and goes on: then the operator tries again.
// A new process that ends otherwise is a failure.
pid_t UpgradeAll(const Flags& flags, const std::string& socket, pid_t serving, int& done) {
  const std::string log = socket + ".log";
  for (int tries = 0; done < flags.upgrades && tries < flags.upgrades + kLateUpgrades; ++tries) {
    const std::int64_t begin = Now();
    const pid_t next = Serve(flags, socket, log);
    int status = 0;
    int refused = 0;
    bool taken = true;
    while (taken && waitpid(serving, &status, WNOHANG) != serving) {
      taken = waitpid(next, &refused, WNOHANG) != next;  // ends first where it has not taken over
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::ifstream file(log);
    const std::string said{std::istreambuf_iterator<char>(file), {}};
    fmt::print(stderr, "upgrade {}: {} ms{}\n{}", done, (Now() - begin) / kMillisecond,
               taken ? "" : ", not taken over", said);
    if (!taken && !MayTakeOverLater(refused, said)) return serving;
    if (!taken) continue;
    serving = next;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return serving;
    ++done;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  return serving;
}

int Run(const Flags& flags) {
  std::string directory = "/tmp/kvcove-upgrade-load-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) return 2;
  const std::string socket = directory + "/kvcove.sock";
  const std::string address = "unix:" + socket;
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Shared& shared = *new (memory) Shared;
  pid_t serving = Serve(flags, socket);
  for (int tries = 0; tries < 500 && !Pool::Open(address); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const pid_t filler = Fork([&] { _exit(Fill(address, flags) ? 0 : 1); });
  int filled = 0;
  waitpid(filler, &filled, 0);
  std::vector<pid_t> users;
  for (int i = 0; i < flags.readers; ++i) {
    users.push_back(Fork([&, i] { Read(address, flags, shared, static_cast<std::uint64_t>(i)); }));
  }
  users.push_back(Fork([&] { Write(address, shared); }));
  while (shared.ready < flags.readers + 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::size_t user_descriptors = FootprintOf(users[0]).descriptors;
  const std::size_t user_mappings = FootprintOf(users[0]).mappings;
  int done = 0;
  const Footprint first = Settled(serving);
  serving = UpgradeAll(flags, socket, serving, done);
  const Footprint last = Ended(serving, first);
  const Footprint user = FootprintOf(users[0]);
  shared.stop = true;
  for (const pid_t pid : users) waitpid(pid, nullptr, 0);
  kill(serving, SIGTERM);
  waitpid(serving, nullptr, 0);
  std::filesystem::remove_all(directory);
  const double get_ms = static_cast<double>(shared.longest_get_ns) / kMillisecond;
  const double put_ms = static_cast<double>(shared.longest_put_ns) / kMillisecond;
  const bool leaked = last.descriptors > first.descriptors || last.mappings > first.mappings ||
                      last.anonymous_kib > first.anonymous_kib * 5 / 4 + 4096 ||
                      user.descriptors != user_descriptors || user.mappings != user_mappings;
  fmt::print(
      "{{\"objects\": {}, \"upgrades\": {}, \"gets\": {}, \"failed_gets\": {}, \"puts\": {}, "
      "\"failed_puts\": {}, \"longest_get_ms\": {:.1f}, \"longest_put_ms\": {:.1f}, "
      "\"owner_anonymous_kib\": [{}, {}], \"owner_descriptors\": [{}, {}], "
      "\"owner_mappings\": [{}, {}], \"leaked\": {}}}\n",
      flags.objects, done, shared.gets.load(), shared.failed_gets.load(), shared.puts.load(),
      shared.failed_puts.load(), get_ms, put_ms, first.anonymous_kib, last.anonymous_kib,
      first.descriptors, last.descriptors, first.mappings, last.mappings, leaked);
  const bool late = flags.limits && (get_ms > 100 || put_ms > 500);
  return filled == 0 && done == flags.upgrades && shared.failed_gets == 0 && !leaked && !late ? 0
                                                                                              : 1;
}

}  // namespace
}  // namespace kvcove

int main(int argc, char** argv) {
  kvcove::Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const char* next = i + 1 < argc ? argv[i + 1] : "0";
    if (word == "--kvcove")
      flags.kvcove = argv[++i];
    else if (word == "--objects")
      flags.objects = std::strtoull(next, nullptr, 10), ++i;
    else if (word == "--upgrades")
      flags.upgrades = std::atoi(next), ++i;
    else if (word == "--readers")
      flags.readers = std::atoi(next), ++i;
    else if (word == "--no-limits")
      flags.limits = false;
    else {
      fmt::print(stderr, "'{}' is no option; see the top of upgrade_load.cc\n", word);
      return 2;
    }
  }
  kvcove::SetLogLevel(kvcove::LogLevel::kOff);
  return kvcove::Run(flags);
}
