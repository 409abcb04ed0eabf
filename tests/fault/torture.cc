// SPDX-License-Identifier: Apache-2.0
// Several processes put, get, borrow, reserve, evict, remove and reset through one daemon, or
// through a master and three owners, while they and the servers are stopped, continued and killed
// at random, and fork, and new processes take over from owners. Every byte that is read is
// verified, and at the end the history of every key. With --hosts 1 each host is a network
// namespace, everybody has credentials, links go down, and one owner is behind a bad network. With
// --disk 1 every owner has a disk and a memory that holds a part of the keys.
//
//   torture --kvcove PATH [--cluster 1 | --hosts 1] [--disk 1] [--reads N] [--at-least S]
//           [--seconds S] [--seed X]
//
// Exit status 77: this machine does not allow network namespaces, or /tmp is no place for a disk.
#include <fmt/core.h>
#include <linux/magic.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/base/random.h"
#include "kvcove/pool/pool.h"
#include "kvcove/rpc/address.h"
#include "kvcove/rpc/channel.h"
#include "kvcove/rpc/credentials.h"
#include "kvcove/wire/master_stub.h"
#include "tests/multihost/fault_proxy.h"
#include "tests/multihost/history.h"
#include "tests/multihost/hosts.h"

extern char** environ;

namespace kvcove {
namespace {

constexpr int kClients = 4;
constexpr std::uint64_t kKeys = 400;
constexpr std::uint64_t kMemory = 16 << 20;
constexpr std::uint64_t kMemoryAboveDisk = 5 << 20;  // of some 9 MiB
constexpr std::chrono::milliseconds kTimeout{1000};
constexpr std::int64_t kSlackNs = 700 * kMillisecond;  // two cores, many processes
constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15ULL;
constexpr std::size_t kRecords = 1 << 20;  // of each client's history

using multihost::kNever;
using multihost::Operation;

// Shared by all processes of a run.
struct Shared {
  std::atomic<std::uint64_t> reads, disk_reads, misses, loans, voided_loans, puts, reserved_puts,
      stale_puts, removes, resets, unproven, forks;
  std::atomic<std::uint64_t> wrong, stale, overdue, fork_faults, server_faults;
  std::atomic<std::uint64_t> resets_called;  // numbers the resets
  std::atomic<std::uint64_t> highest_proven;
  std::atomic<std::uint64_t> serial;
  std::atomic<std::uint64_t>
      disturbed[kClients];  // stops and daemon deaths: time spent so is not the call's
  std::atomic<bool> done;
  bool disk;  // values need time to get there: fewer resets
  // What each client did, across its lives. When one is full the history ends for all.
  std::atomic<std::size_t> recorded[kClients];
  std::atomic<std::int64_t> history_ends_ns;  // 0: it goes on
  Operation history[kClients][kRecords];
};

Shared* shared = nullptr;

struct ValueHead {
  std::uint64_t key;
  std::uint64_t resets_called;  // when its token had been captured
  std::uint64_t serial;
  std::uint64_t size;
};

void Fill(std::vector<std::byte>& value, const ValueHead& head) {
  const std::uint64_t seed = Mix64(head.key ^ Mix64(head.serial ^ Mix64(head.resets_called)));
  for (std::size_t at = 0; at + 8 <= value.size(); at += 8) {
    const std::uint64_t word = (seed + at) * kOdd;
    std::memcpy(value.data() + at, &word, 8);
  }
  std::memcpy(value.data(), &head, sizeof(head));
}

class Client {
 public:
  Client(int number, std::uint64_t seed, std::string address)
      : number_(number), random_(seed), address_(std::move(address)) {
    for (auto& buffer : buffers_) buffer.resize((1 << 20) + 65536);
  }

  int Run() {
    if (!Open()) return 3;
    while (!shared->done) Step();
    return 0;
  }

 private:
  bool Open() {
    for (int tries = 0; tries < 500; ++tries) {
      auto pool = Pool::Open(address_);
      if (pool) {
        pool_ = std::move(*pool);
        session_ = *pool_->OpenSession({.name = "torture", .follow_always = true});
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  static std::string KeyOf(std::uint64_t key) {
    return fmt::format("torture@{:04}@{:016x}", key, Mix64(key));
  }

  // Calls `call` and sees that it ends in time, unless the process was disturbed meanwhile.
  static std::int64_t Now() { return SystemClock::Instance().NowNs(); }

  // An operation that begins; its end is written into it. Null when there is no room.
  Operation* Record(const Operation& operation) {
    std::atomic<std::size_t>& count = shared->recorded[number_];
    if (count >= kRecords) {
      std::int64_t none = 0;
      shared->history_ends_ns.compare_exchange_strong(none, Now());
      return nullptr;
    }
    Operation& record = shared->history[number_][count];
    record = operation;
    record.began_ns = Now();
    record.ended_ns = kNever;
    record.client = static_cast<std::uint8_t>(number_);
    ++count;
    return &record;
  }
  static void End(Operation* record, Operation::Outcome outcome, std::int64_t ended_ns) {
    if (record == nullptr) return;
    record->ended_ns = ended_ns;
    record->outcome = outcome;
  }

  template <typename Call>
  void Timed(std::chrono::milliseconds limit, const Call& call) {
    const std::uint64_t before = shared->disturbed[number_];
    const std::int64_t start = SystemClock::Instance().NowNs();
    call();
    const std::int64_t took = SystemClock::Instance().NowNs() - start;
    if (took > limit.count() * kMillisecond + kSlackNs && shared->disturbed[number_] == before) {
      fmt::print(stderr, "torture: a call took {} ms\n", took / kMillisecond);
      ++shared->overdue;
    }
  }

  void Step() {
    const std::uint64_t dice = random_.Below(1000);
    if (dice < 500) return Get();
    if (dice < 700) return Borrow();
    if (dice < 930) return Put();
    if (dice < 960) return Look();
    if (dice < 970) return Remove();
    if (dice < 993) return HoldOrPin();
    if (dice < 998) return shared->disk && !random_.OneIn(10) ? Get() : Reset();
    Fork();
  }

  void Put() {
    const std::size_t count = 1 + random_.Below(6);
    Result<Token> token = Fail(Code::kInternal, "");
    Timed(kTimeout, [&] { token = session_->Capture({}); });
    if (!token) return;
    const std::uint64_t resets_called = shared->resets_called;
    const std::int64_t captured_ns = Now();
    std::vector<Operation*> records;
    std::vector<std::string> keys;
    std::vector<std::vector<std::byte>> values;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t key = random_.Below(kKeys);
      keys.push_back(KeyOf(key));
      // 32 B to 8 KiB mostly, some up to 1 MiB.
      const std::uint64_t size = sizeof(ValueHead) + 8 * random_.Below(random_.OneIn(40)  ? 131000
                                                                       : random_.OneIn(3) ? 5000
                                                                                          : 500);
      values.emplace_back(size);
      const std::uint64_t serial = ++shared->serial;
      Fill(values.back(), {key, resets_called, serial, size});
      records.push_back(Record({.kind = Operation::Kind::kPut,
                                .key = static_cast<std::uint32_t>(key),
                                .value = serial,
                                .captured_ns = captured_ns}));
    }
    std::vector<ConstBuffer> pieces(count);
    std::vector<PutItem> items(count);
    std::vector<ItemResult> results(count);
    for (std::size_t i = 0; i < count; ++i) {
      pieces[i] = {.data = values[i].data(), .size = values[i].size()};
      items[i] = {.key = keys[i], .value = {&pieces[i], 1}, .after = {}};
    }
    for (Operation* record : records) {
      if (record != nullptr) record->began_ns = Now();
    }
    if (random_.OneIn(3)) {
      PutInPlace(*token, items, results);
    } else {
      Timed(kTimeout, [&] { (void)session_->Put(*token, items, results, {.timeout = kTimeout}); });
    }
    const std::int64_t ended_ns = Now();
    for (std::size_t i = 0; i < count; ++i) {
      const ItemResult& result = results[i];
      if (result.ok()) ++shared->puts;
      if (result.code == Code::kStale) ++shared->stale_puts;
      // "Exists" may be its own value: an owner that stored it and died before it answered.
      const bool refused = result.code == Code::kStale;
      End(records[i],
          result.ok() && result.listed ? Operation::Outcome::kDone
          : refused                    ? Operation::Outcome::kRefused
                                       : Operation::Outcome::kUnknown,
          ended_ns);
    }
  }

  // The same put, into memory that is reserved first.
  void PutInPlace(const Token& token, std::span<const PutItem> items,
                  std::span<ItemResult> results) {
    std::vector<ReserveItem> wanted;
    for (const PutItem& item : items) {
      wanted.push_back({.key = item.key, .size_bytes = item.value[0].size});
    }
    Result<Reserved> space = Fail(Code::kInternal, "");
    Timed(kTimeout, [&] { space = session_->Reserve(token, wanted, {.timeout = kTimeout}); });
    if (!space) {
      std::ranges::fill(results, ItemResult{.code = space.error().code});
      return;
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      const auto* from = static_cast<const std::byte*>(items[i].value[0].data);
      for (const MutableBuffer& piece : space->pieces(i)) {
        std::memcpy(piece.data, from, piece.size);
        from += piece.size;
      }
    }
    if (random_.OneIn(20))
      std::this_thread::sleep_for(std::chrono::milliseconds(random_.Below(40)));
    if (random_.OneIn(15)) {
      // What is given up is never seen; what was not reserved is there or not, as it was.
      for (std::size_t i = 0; i < items.size(); ++i) {
        const ItemResult& result = space->result(i);
        results[i] = result.ok() ? ItemResult{.code = Code::kStale} : result;
      }
      Timed(kTimeout, [&] { space->Abort(kTimeout); });
      return;
    }
    Timed(kTimeout, [&] { (void)space->Commit(results, kTimeout); });
    for (const ItemResult& result : results) shared->reserved_puts += result.ok() ? 1 : 0;
  }

  static std::size_t CopyOut(const Borrowed& loan, std::size_t i, std::vector<std::byte>& into) {
    std::size_t at = 0;
    for (const ConstBuffer& piece : loan.pieces(i)) {
      std::memcpy(into.data() + at, piece.data, piece.size);
      at += piece.size;
    }
    return at;
  }

  // A get whose copy this process makes, as slowly as a device that waits for its turn.
  void Borrow() {
    const std::size_t count = 1 + random_.Below(4);
    std::vector<std::uint64_t> numbers;
    std::vector<std::string> keys;
    for (std::size_t i = 0; i < count; ++i) {
      numbers.push_back(random_.Below(kKeys));
      keys.push_back(KeyOf(numbers.back()));
    }
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    const std::int64_t began_ns = Now();
    Result<Borrowed> loan = Fail(Code::kInternal, "");
    Timed(kTimeout, [&] { loan = session_->Borrow(views, {.timeout = kTimeout}); });
    if (!loan) return;
    std::vector<std::size_t> sizes(count);
    for (std::size_t i = 0; i < count; ++i) sizes[i] = CopyOut(*loan, i, buffers_[i]);
    if (random_.OneIn(8)) std::this_thread::sleep_for(std::chrono::milliseconds(random_.Below(60)));
    for (std::size_t i = 0; i < count; ++i) {
      (void)CopyOut(*loan, i, buffers_[4 + i]);
      if (std::memcmp(buffers_[i].data(), buffers_[4 + i].data(), sizes[i]) == 0) continue;
      fmt::print(stderr, "torture: borrowed memory of key {} has changed\n", numbers[i]);
      ++shared->wrong;
    }
    // What was proven before the loan ends voids it, too.
    const std::uint64_t proven = shared->highest_proven;
    std::vector<ItemResult> results(count);
    Timed(kTimeout, [&] { (void)loan->Release(results); });
    for (std::size_t i = 0; i < count; ++i) {
      if (sizes[i] == 0) {
        ++shared->misses;
        continue;
      }
      shared->voided_loans += results[i].ok() ? 0 : 1;
      // Also a voided one is one whole value.
      Verify(numbers[i], {buffers_[i].data(), sizes[i]}, results[i].ok() ? proven : 0);
      ++shared->loans;
      if (!results[i].ok()) continue;
      ValueHead head{};
      std::memcpy(&head, buffers_[i].data(), sizeof(head));
      Operation* record = Record({.kind = Operation::Kind::kGet,
                                  .key = static_cast<std::uint32_t>(numbers[i]),
                                  .value = head.serial});
      if (record != nullptr) {
        record->began_ns = began_ns;
        record->tier = results[i].tier;
      }
      End(record, Operation::Outcome::kDone, Now());
    }
  }

  void Get() {
    const std::size_t count = 1 + random_.Below(8);
    std::vector<std::uint64_t> numbers;
    std::vector<std::string> keys;
    for (std::size_t i = 0; i < count; ++i) {
      numbers.push_back(random_.Below(kKeys));
      keys.push_back(KeyOf(numbers.back()));
    }
    auto& buffers = buffers_;
    std::vector<MutableBuffer> pieces(count * 2);
    std::vector<GetItem> items(count);
    std::vector<ItemResult> results(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t cut = 8 * random_.Below(1000);  // in two pieces
      pieces[2 * i] = {.data = buffers[i].data(), .size = cut};
      pieces[2 * i + 1] = {.data = buffers[i].data() + cut, .size = buffers[i].size() - cut};
      items[i] = {.key = keys[i], .into = {&pieces[2 * i], 2}};
    }
    const std::uint64_t proven = shared->highest_proven;  // before the get begins
    const std::int64_t began_ns = Now();
    Timed(kTimeout, [&] { (void)session_->Get(items, results, {.timeout = kTimeout}); });
    for (std::size_t i = 0; i < count; ++i) {
      if (!results[i].ok()) {
        ++shared->misses;
        continue;
      }
      const std::int64_t ended_ns = Now();
      Verify(numbers[i], {buffers[i].data(), results[i].bytes}, proven);
      if (results[i].tier == Tier::kDisk) ++shared->disk_reads;
      ValueHead head{};
      std::memcpy(&head, buffers[i].data(), sizeof(head));
      Operation* record = Record({.kind = Operation::Kind::kGet,
                                  .key = static_cast<std::uint32_t>(numbers[i]),
                                  .value = head.serial});
      if (record != nullptr) {
        record->began_ns = began_ns;
        record->tier = results[i].tier;
      }
      End(record, Operation::Outcome::kDone, ended_ns);
    }
  }

  void Verify(std::uint64_t key, std::span<const std::byte> value, std::uint64_t proven) {
    ++shared->reads;
    ValueHead head{};
    std::memcpy(&head, value.data(), std::min(sizeof(head), value.size()));
    std::vector<std::byte> expected(value.size());
    if (value.size() < sizeof(head) || head.key != key || head.size != value.size()) {
      fmt::print(stderr, "torture: key {} holds the value of key {}\n", key, head.key);
      ++shared->wrong;
      return;
    }
    Fill(expected, head);
    if (std::memcmp(expected.data(), value.data(), value.size()) != 0) {
      fmt::print(stderr, "torture: wrong bytes under key {}\n", key);
      ++shared->wrong;
    }
    // A reset that was called after its token was captured had been proven before this get began.
    if (proven > head.resets_called) {
      fmt::print(stderr, "torture: key {} is stale: begun before reset {}, which was proven\n", key,
                 proven);
      ++shared->stale;
    }
  }

  void Look() {
    std::vector<std::string> keys;
    for (int i = 0; i < 40; ++i) keys.push_back(KeyOf(random_.Below(kKeys)));
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    std::vector<ItemResult> results(views.size());
    Timed(kTimeout, [&] { (void)session_->Exists(views, results, {}); });
    Timed(kTimeout, [&] { (void)session_->LongestPrefix(views, {}); });
  }

  void Remove() {
    const std::uint64_t number = random_.Below(kKeys);
    const std::string key = KeyOf(number);
    const std::string_view view = key;
    ItemResult result;
    const auto record = [&](std::uint64_t of) {
      return Record({.kind = Operation::Kind::kRemove, .key = static_cast<std::uint32_t>(of)});
    };
    const auto outcome = [](bool proven) {
      return proven ? Operation::Outcome::kDone : Operation::Outcome::kUnknown;
    };
    if (random_.OneIn(10)) {
      const std::uint64_t ten = random_.Below(10);
      std::vector<Operation*> records;
      for (std::uint64_t i = 0; i < 10; ++i) records.push_back(record(ten * 10 + i));
      bool done = false;
      Timed(kTimeout, [&] {
        done = session_->RemoveMatching(fmt::format("torture@00{}*", ten), {}).has_value();
      });
      const std::int64_t ended_ns = Now();
      for (Operation* one : records) End(one, outcome(done), ended_ns);
    } else {
      Operation* one = record(number);
      Status done;
      Timed(kTimeout, [&] { done = session_->Remove({&view, 1}, {&result, 1}, {}); });
      End(one, outcome(done && (result.code == Code::kOk || result.code == Code::kMiss)), Now());
    }
    ++shared->removes;
  }

  void HoldOrPin() {
    const std::string key = KeyOf(random_.Below(kKeys));
    const std::string_view view = key;
    ItemResult result;
    const std::uint64_t which = random_.Below(4);
    Timed(kTimeout, [&] {
      if (which == 0)
        (void)session_->Hold({&view, 1}, std::chrono::milliseconds(200), {&result, 1});
      if (which == 1) {
        (void)session_->Pin({&view, 1}, PinKind::kSoft, std::chrono::milliseconds(200),
                            {&result, 1}, {});
      }
      if (which == 2) (void)session_->Pin({&view, 1}, PinKind::kHard, {}, {&result, 1}, {});
      if (which == 3) (void)session_->Unpin({&view, 1}, {&result, 1}, {});
    });
  }

  void Reset() {
    const std::uint64_t number = ++shared->resets_called;
    Status done;
    Operation* record = Record({.kind = Operation::Kind::kReset});
    Timed(std::chrono::milliseconds(2500),
          [&] { done = session_->Reset({.all_void = random_.OneIn(2)}); });
    End(record, done ? Operation::Outcome::kDone : Operation::Outcome::kUnknown, Now());
    if (!done) {
      ++shared->unproven;
      return;
    }
    ++shared->resets;
    std::uint64_t highest = shared->highest_proven;
    while (highest < number && !shared->highest_proven.compare_exchange_weak(highest, number)) {
    }
  }

  // A forked child must not be able to use what it inherited, and may open a pool of its own.
  void Fork() {
    const pid_t child = fork();
    if (child == 0) {
      const std::string key = KeyOf(1);
      const std::string_view view = key;
      ItemResult result;
      const Status status = session_->Exists({&view, 1}, {&result, 1}, {});
      const bool refused = !status && status.error().code == Code::kUnavailable;
      bool opened = true;
      if (auto pool = Pool::Open(address_)) {
        auto session = *(*pool)->OpenSession({.name = "torture", .follow_always = true});
        opened = session->Exists({&view, 1}, {&result, 1}, {}).has_value();
        session.reset();
        pool->reset();
      }
      session_.reset();  // lets go of the parent's
      pool_.reset();
      _exit(refused && opened ? 0 : 1);
    }
    if (child < 0) return;
    int status = 0;
    waitpid(child, &status, 0);
    ++shared->forks;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      fmt::print(stderr, "torture: a forked child ended with {}\n", status);
      ++shared->fork_faults;
    }
  }

  const int number_;
  Random random_;
  const std::string address_;
  std::unique_ptr<Pool> pool_;
  SessionPtr session_;
  std::array<std::vector<std::byte>, 8> buffers_;
};

struct RunOptions {
  std::string command;
  bool cluster = false;
  bool hosts = false;
  bool disk = false;
  std::uint64_t reads = 100'000;
  int at_least = 15;
  int seconds = 240;
  std::uint64_t seed = RandomU64() % 1'000'000'000;
};

class Run {
 public:
  Run(const RunOptions& options, std::optional<multihost::Hosts> hosts)
      : command_(options.command),
        cluster_(options.cluster || hosts),
        hosts_(std::move(hosts)),
        reads_(options.reads),
        at_least_(options.at_least),
        seconds_(options.seconds),
        seed_(options.seed),
        random_(options.seed) {
    std::string name = "/tmp/kvcove-torture-XXXXXX";
    directory_ = mkdtemp(name.data());
    if (!cluster_) {
      AddServer({"serve", "--memory", std::to_string(Memory())}, "host0", /*owner=*/true);
      address_ = "unix:" + servers_[0].socket;
      return;
    }
    if (hosts_) {
      AddHosts();
      return;
    }
    rpc::Address master{.host = "127.0.0.1", .port = 0};
    if (!rpc::ListenTcp(master)) std::exit(2);
    address_ = "kvcove://" + master.ToString();
    master_ = master;
    AddServer({"master", "--listen", master.ToString(), "--data", directory_ + "/master", "--admin",
               "off"},
              "master",
              /*owner=*/false);
    for (int i = 0; i < kOwners; ++i) {
      AddServer({"owner", "--master", master.ToString(), "--listen", "127.0.0.1:0", "--admin",
                 "off", "--memory", std::to_string(Memory() / kOwners)},
                fmt::format("host{}", i), /*owner=*/true);
    }
  }

  // An owner and clients on each host, the master on one more. Between the last owner and the
  // others is a bad network.
  void AddHosts() {
    const std::string credentials = directory_ + "/credentials.toml";
    const std::string token = directory_ + "/token.toml";
    const std::string secret = rpc::NewToken();
    WritePrivate(credentials,
                 fmt::format("[tenants.trial]\ntokens = [\"{}\"]\nscopes = [\"read\", \"write\", "
                             "\"reset\"]\n[tenants.cluster]\ntokens = [\"{}\"]\nscopes = "
                             "[\"owner\"]\n",
                             secret, rpc::NewToken()));
    WritePrivate(token, fmt::format("tenant = \"trial\"\ntoken = \"{}\"\n", secret));
    const auto at = [](int host, int port) {
      return fmt::format("{}:{}", multihost::Hosts::AddressOf(host), port);
    };
    const std::string master = at(kOwners, 7400);
    address_ = fmt::format("kvcove://{}?token={}", master, token);
    AddServer({"master", "--listen", master, "--data", directory_ + "/master", "--admin", "off",
               "--credentials", credentials},
              "master", /*owner=*/false, kOwners);
    for (int i = 0; i < kOwners; ++i) {
      std::vector<std::string> arguments = {
          "owner",         "--master",  master,
          "--listen",      at(i, 7401), "--admin",
          "off",           "--memory",  std::to_string(Memory() / kOwners),
          "--credentials", credentials, "--tenant",
          "trial"};
      if (i + 1 == kOwners) {
        // The proxy's threads stay on the switch; this one goes home again.
        std::thread([&] {
          (void)hosts_->Enter(-1);
          proxy_ = std::move(*multihost::FaultProxy::Open(
              {.host = multihost::Hosts::SwitchAddress(), .port = 7500},
              *rpc::ParseAddress(at(i, 7401), 0), seed_));
        }).join();
        arguments.insert(arguments.end(), {"--advertise", proxy_->address().ToString()});
      }
      AddServer(std::move(arguments), fmt::format("host{}", i), /*owner=*/true, i);
    }
  }
  ~Run() { std::filesystem::remove_all(directory_); }

  int Go() {
    fmt::print("torture: seed {}, {} clients, until {} verified reads{} or {} s\n", seed_, kClients,
               reads_, shared->disk ? " from disks" : "", seconds_);
    std::fflush(stdout);
    for (Server& server : servers_) Start(server);
    for (int i = 0; i < kClients; ++i) StartClient(i);
    const auto elapsed = [start = SystemClock::Instance().NowNs()] {
      return SystemClock::Instance().NowNs() - start;
    };
    while ((Counted() < reads_ || elapsed() < at_least_ * kSecond) &&
           elapsed() < seconds_ * kSecond && Clean()) {
      Disturb();
    }
    shared->done = true;
    for (int i = 0; i < kClients; ++i) {
      kill(clients_[i], SIGCONT);
      waitpid(clients_[i], nullptr, 0);
    }
    for (int i = 0; hosts_ && i < hosts_->count(); ++i) hosts_->SetLink(i, true);
    bool empty = true;
    for (const Server& server : servers_) empty = empty && NothingLeft(server);
    bool stopped = true;
    for (auto server = servers_.rbegin(); server != servers_.rend(); ++server) {
      kill(server->pid, SIGTERM);
      int status = 0;
      waitpid(server->pid, &status, 0);
      stopped = stopped && WIFEXITED(status) && WEXITSTATUS(status) == 0 &&
                (server->socket.empty() || !std::filesystem::exists(server->socket));
    }
    fmt::print(
        "torture: {} verified reads ({} from a disk, {} loans, {} of them voided), {} misses, {} "
        "puts ({} reserved), {} stale puts refused, {} removals, {} resets proven, {} not proven, "
        "{} forks; {} client kills, {} client stops, {} server kills, {} server stops\n"
        "torture: {} wrong, {} stale, {} overdue, {} fork faults, leftovers {}, clean stop {}\n",
        shared->reads.load(), shared->disk_reads.load(), shared->loans.load(),
        shared->voided_loans.load(), shared->misses.load(), shared->puts.load(),
        shared->reserved_puts.load(), shared->stale_puts.load(), shared->removes.load(),
        shared->resets.load(), shared->unproven.load(), shared->forks.load(), kills_, stops_,
        server_kills_, server_stops_, shared->wrong.load(), shared->stale.load(),
        shared->overdue.load(), shared->fork_faults.load(), empty ? "none" : "SOME",
        stopped ? "yes" : "NO");
    fmt::print("torture: {} upgrades, {} given up\n", upgrades_, upgrades_given_up_);
    if (proxy_ != nullptr) {
      fmt::print(
          "torture: {} times a link was down; the bad network was late {} times, stood still "
          "{} times, broke {} connections\n",
          links_down_, proxy_->delays(), proxy_->stalls(), proxy_->breaks());
    }
    const bool explained = HistoryIsSound();
    const bool enough = Counted() >= reads_;
    if (!enough) fmt::print("torture: only {} of {} reads in time\n", Counted(), reads_);
    return Clean() && empty && stopped && enough && explained ? 0 : 1;
  }

 private:
  std::uint64_t Memory() const { return shared->disk ? kMemoryAboveDisk : kMemory; }
  std::uint64_t Counted() const { return shared->disk ? shared->disk_reads : shared->reads; }

  bool Clean() const {
    return shared->wrong == 0 && shared->stale == 0 && shared->overdue == 0 &&
           shared->fork_faults == 0 && shared->server_faults == 0;
  }

  bool HistoryIsSound() const {
    const std::int64_t ends_ns =
        shared->history_ends_ns == 0 ? kNever : shared->history_ends_ns.load();
    std::vector<Operation> history;
    for (int i = 0; i < kClients; ++i) {
      for (std::size_t k = 0; k < shared->recorded[i]; ++k) {
        if (shared->history[i][k].began_ns < ends_ns) history.push_back(shared->history[i][k]);
      }
    }
    // A read that began in time may have met a put that was not recorded any more.
    std::erase_if(history, [&](const Operation& operation) {
      return operation.kind == Operation::Kind::kGet && operation.ended_ns >= ends_ns;
    });
    history.insert(history.end(), masters_.begin(), masters_.end());
    const std::vector<std::string> violations = multihost::CheckHistory(history);
    for (std::size_t i = 0; i < std::min<std::size_t>(violations.size(), 20); ++i) {
      fmt::print(stderr, "torture: {}\n", violations[i]);
    }
    for (std::size_t i = 0; i < notes_.size() && !violations.empty(); ++i) {
      fmt::print(stderr, "torture: {}\n", notes_[i]);
    }
    fmt::print("torture: the history of {} operations has {} violations\n", history.size(),
               violations.size());
    return violations.empty();
  }

  static void WritePrivate(const std::string& path, const std::string& text) {
    std::ofstream(path) << text;
    chmod(path.c_str(), 0600);
  }

  struct Server {
    std::vector<std::string> arguments;
    std::string host;
    std::string socket;  // of an owner
    pid_t pid = 0;
  };

  // `place`: its host, where hosts are namespaces.
  void AddServer(std::vector<std::string> arguments, std::string host, bool owner, int place = -1) {
    Server server{.arguments = {}, .host = std::move(host)};
    if (hosts_) server.arguments = hosts_->Prefix(place);
    server.arguments.insert(server.arguments.end(), {command_, "--log", "error"});
    server.arguments.insert(server.arguments.end(), arguments.begin(), arguments.end());
    if (owner) {
      server.socket = fmt::format("{}/{}/kvcove.sock", directory_, server.host);
      server.arguments.insert(server.arguments.end(), {"--socket", server.socket});
      if (shared->disk) {
        server.arguments.insert(server.arguments.end(),
                                {"--disk", fmt::format("{}/{}-disk:32MiB", directory_, server.host),
                                 "--disk-admit", "all"});
      }
    }
    servers_.push_back(std::move(server));
  }

  void Start(Server& server) { server.pid = Spawn(server, server.arguments); }

  // Printed with a violation, to explain it. The history counts time from the same clock.
  void Note(const Server& server, std::string_view what) {
    const double ms = static_cast<double>(SystemClock::Instance().NowNs()) * 1e-6;
    notes_.push_back(fmt::format("at {:.1f} ms: {} {}", ms, server.host, what));
  }

  pid_t Spawn(const Server& server, std::vector<std::string> arguments) const {
    setenv("KVCOVE_HOST_ID", server.host.c_str(), 1);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_t pid = 0;
    if (posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ) != 0) {
      fmt::print(stderr, "torture: cannot start {}\n", command_);
      std::exit(2);
    }
    return pid;
  }

  // A new process takes over from a running owner or master, or is killed while it tries. Nothing
  // is excused: calls end in time all the while.
  void Upgrade(Server& server) {
    std::vector<std::string> arguments = server.arguments;
    arguments.emplace_back("--take-over");
    const pid_t next = Spawn(server, std::move(arguments));
    const std::int64_t begin_ns = SystemClock::Instance().NowNs();
    // An upgrade takes some 10 ms after the start of the process.
    const std::int64_t kill_ns =
        random_.OneIn(3) ? static_cast<std::int64_t>(random_.Below(60)) * kMillisecond : kNever;
    while (true) {
      const std::int64_t elapsed_ns = SystemClock::Instance().NowNs() - begin_ns;
      if (elapsed_ns >= kill_ns) kill(next, SIGKILL);
      int status = 0;
      if (waitpid(server.pid, &status, WNOHANG) == server.pid) {
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
          fmt::print(stderr, "torture: '{}', taken over, ends with {}\n", server.host, status);
          ++shared->server_faults;
        }
        // All is the other one's; where that one has been killed since, it is a server's kill.
        server.pid = next;
        ++upgrades_;
        Note(server, "taken over");
        if (elapsed_ns >= kill_ns) Restart(server, begin_ns);
        return;
      }
      if (waitpid(next, nullptr, WNOHANG) == next) {
        // One that is killed when all is its already leaves one behind that is about to end.
        if (elapsed_ns >= kill_ns && EndsWithin(server.pid, kSecond)) {
          ++upgrades_;
          return StartAgain(server, begin_ns);
        }
        ++upgrades_given_up_;
        return;
      }
      if (elapsed_ns >= kUpgradeNs) {
        fmt::print(stderr, "torture: an upgrade neither succeeds nor ends\n");
        ++shared->server_faults;
        kill(next, SIGKILL);
        waitpid(next, nullptr, 0);
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // `ends_ns`: when the running one may have ended at the earliest.
  void Restart(Server& server, std::int64_t ends_ns) {
    for (auto& disturbed : shared->disturbed) ++disturbed;
    kill(server.pid, SIGKILL);
    int status = 0;
    waitpid(server.pid, &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
      fmt::print(stderr, "torture: '{}' had ended by itself, with {}\n", server.host, status);
      ++shared->server_faults;
    }
    StartAgain(server, ends_ns);
  }

  static bool EndsWithin(pid_t pid, std::int64_t ns) {
    const std::int64_t until_ns = SystemClock::Instance().NowNs() + ns;
    while (waitpid(pid, nullptr, WNOHANG) == 0) {
      if (SystemClock::Instance().NowNs() >= until_ns) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  void StartAgain(Server& server, std::int64_t ends_ns) {
    for (auto& disturbed : shared->disturbed) ++disturbed;
    Note(server, "started again");
    Start(server);
    if (!server.socket.empty()) return;
    masters_.push_back({.kind = Operation::Kind::kMaster,
                        .began_ns = ends_ns,
                        .ended_ns = SystemClock::Instance().NowNs() + kTellNs});
    telling_ = shared->disk;
  }

  // An owner with a disk tells a new master for as long as it reads its zones. One that the master
  // does not give a lease yet has told nothing: the master may be only just there, or the owner
  // starts, or stands still.
  void FollowTelling() {
    if (!telling_) return;
    const std::int64_t now = SystemClock::Instance().NowNs();
    masters_.back().ended_ns = std::max(masters_.back().ended_ns, now);
    telling_ = now < masters_.back().began_ns + kLongestTellNs;
    rpc::TcpChannel channel(master_, {});
    const auto owners = wire::MasterStub(channel).Owners(now + kSecond);
    if (!owners) return;
    const auto told =
        std::ranges::count_if(owners->owners, [](const auto& one) { return one.live && one.told; });
    telling_ = telling_ && told < kOwners;
  }

  void StartClient(int number) {
    const pid_t pid = fork();
    if (pid == 0) {
      SetLogLevel(LogLevel::kError);
      if (hosts_ && !hosts_->Enter(number % kOwners)) _exit(2);
      // In a cluster the last one has no owner on its host.
      setenv("KVCOVE_HOST_ID", fmt::format("host{}", number).c_str(), 1);
      _exit(Client(number, seed_ * 1000 + generation_ * 10 + static_cast<std::uint64_t>(number),
                   address_)
                .Run());
    }
    ++generation_;
    clients_[number] = pid;
  }

  void Disturb() {
    FollowTelling();
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + random_.Below(40)));
    const int victim = static_cast<int>(random_.Below(kClients));
    const std::uint64_t dice = random_.Below(100);
    if (dice < 35) {
      // Stopped for a moment, or for longer than every deadline.
      ++shared->disturbed[victim];
      kill(clients_[victim], SIGSTOP);
      std::this_thread::sleep_for(std::chrono::milliseconds(
          random_.OneIn(12) ? 1500 + random_.Below(1000) : random_.Below(60)));
      ++shared->disturbed[victim];
      kill(clients_[victim], SIGCONT);
      ++stops_;
    } else if (dice < 60) {
      kill(clients_[victim], SIGKILL);
      waitpid(clients_[victim], nullptr, 0);
      ++kills_;
      StartClient(victim);
    } else if (dice < 63) {
      Server& server = servers_[random_.Below(servers_.size())];
      Restart(server, SystemClock::Instance().NowNs());
      ++server_kills_;
    } else if (dice < 66 && cluster_) {
      // Frozen for a moment, or beyond its lease: then it thaws with old answers in its sockets.
      const Server& server = servers_[random_.Below(servers_.size())];
      Note(server, "stopped");
      kill(server.pid, SIGSTOP);
      std::this_thread::sleep_for(std::chrono::milliseconds(
          random_.OneIn(4) ? 1200 + random_.Below(1500) : random_.Below(300)));
      kill(server.pid, SIGCONT);
      Note(server, "continued");
      ++server_stops_;
    } else if (dice < 70 && hosts_) {
      const int host = static_cast<int>(random_.Below(kOwners + 1));
      hosts_->SetLink(host, false);
      std::this_thread::sleep_for(std::chrono::milliseconds(
          random_.OneIn(3) ? 1200 + random_.Below(1500) : random_.Below(400)));
      hosts_->SetLink(host, true);
      ++links_down_;
    } else if (dice < 73) {
      Upgrade(servers_[random_.Below(servers_.size())]);
    }
  }

  // When all clients are gone the owner holds nothing for them.
  bool NothingLeft(const Server& server) {
    if (server.socket.empty()) return true;
    // It may have been started again just now.
    Result<std::unique_ptr<Pool>> pool = Fail(Code::kUnavailable, "");
    for (int tries = 0; tries < 1000 && !pool; ++tries) {
      pool = Pool::Open("unix:" + server.socket, std::chrono::seconds(5));
      if (!pool) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (!pool) return false;
    PoolStat last;
    for (int tries = 0; tries < 1000; ++tries) {
      const auto stat = (*pool)->Stat();
      if (stat) last = *stat;
      // Besides this process an owner itself has sessions, one a connection of another host.
      const auto others = std::ranges::count_if(last.sessions, [&](const auto& session) {
        return session.pid != getpid() && session.pid != server.pid;
      });
      if (stat && last.reserved_bytes == 0 && last.withdrawn_bytes == 0 && others == 0) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    fmt::print("torture: left: {} bytes reserved, {} withdrawn, sessions of", last.reserved_bytes,
               last.withdrawn_bytes);
    for (const auto& session : last.sessions) fmt::print(" {}", session.pid);
    fmt::print("\n");
    return false;
  }

  static constexpr int kOwners = 3;
  // Longer than every wait of both processes.
  static constexpr std::int64_t kUpgradeNs = 30 * kSecond;
  static constexpr std::int64_t kTellNs = 2 * kSecond;  // what owners take to tell a new master
  static constexpr std::int64_t kLongestTellNs = 15 * kSecond;
  const std::string command_;
  const bool cluster_;
  const std::optional<multihost::Hosts> hosts_;
  std::unique_ptr<multihost::FaultProxy> proxy_;
  const std::uint64_t reads_;
  const int at_least_;
  const int seconds_;
  const std::uint64_t seed_;
  Random random_;
  std::string directory_;
  std::string address_;
  std::vector<Server> servers_;
  pid_t clients_[kClients] = {};
  std::uint64_t generation_ = 0;
  std::vector<Operation> masters_;
  rpc::Address master_;
  std::vector<std::string> notes_;
  bool telling_ = false;  // the last of `masters_` is not told by all that have a disk
  std::uint64_t kills_ = 0, stops_ = 0, server_kills_ = 0, server_stops_ = 0, links_down_ = 0;
  std::uint64_t upgrades_ = 0, upgrades_given_up_ = 0;
};

}  // namespace
}  // namespace kvcove

int main(int argc, char** argv) {
  kvcove::RunOptions options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const char* value = argv[i + 1];
    if (name == "--kvcove")
      options.command = value;
    else if (name == "--cluster")
      options.cluster = std::atoi(value) != 0;
    else if (name == "--hosts")
      options.hosts = std::atoi(value) != 0;
    else if (name == "--disk")
      options.disk = std::atoi(value) != 0;
    else if (name == "--reads")
      options.reads = std::strtoull(value, nullptr, 10);
    else if (name == "--at-least")
      options.at_least = std::atoi(value);
    else if (name == "--seconds")
      options.seconds = std::atoi(value);
    else if (name == "--seed")
      options.seed = std::strtoull(value, nullptr, 10);
    else
      return 2;
  }
  if (struct statfs fs{}; options.disk && statfs("/tmp", &fs) == 0 && fs.f_type == TMPFS_MAGIC) {
    fmt::print("torture: skipped: /tmp is a tmpfs\n");
    return 77;
  }
  void* memory = mmap(nullptr, sizeof(kvcove::Shared), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  kvcove::shared = new (memory) kvcove::Shared{};
  kvcove::shared->disk = options.disk;
  std::optional<kvcove::multihost::Hosts> made;
  if (options.hosts) {
    auto namespaces = kvcove::multihost::Hosts::Make(4);
    if (!namespaces) {
      fmt::print("torture: skipped: {}\n", namespaces.error().detail);
      return 77;
    }
    made.emplace(std::move(*namespaces));
  }
  return kvcove::Run(options, std::move(made)).Go();
}
