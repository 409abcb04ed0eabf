// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/etcd/etcd_store.h"

#include <fmt/core.h>

#include <algorithm>
#include <deque>

#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"

namespace kvcove::master {
namespace {

using nlohmann::json;

constexpr std::int64_t kRepeatNs = 50 * kMillisecond;
constexpr std::int64_t kCallNs = 2 * kSecond;
// Limits of one transaction of etcd; its own are 128 operations and 1.5 MiB where nobody raised
// them. A larger one is stored in parts first, and one transaction makes them count.
constexpr std::size_t kTransactionOperations = 100;
constexpr std::size_t kTransactionBytes = 1 << 20;
constexpr std::int64_t kEtcdLoadNs = 60 * kSecond;
constexpr std::size_t kOperationBytes = 512;  // of a change beside its value, in etcd's form

json RangeRequest(const std::string& from, const std::string& end, std::int64_t page,
                  std::int64_t revision) {
  json request = {
      {"key", ToBase64(from)}, {"range_end", ToBase64(end)}, {"limit", std::to_string(page)}};
  if (revision != 0) request["revision"] = std::to_string(revision);
  return request;
}

// Adds a page to the snapshot. Returns its last key; nothing when it was the last page.
Result<std::optional<std::string>> TakePage(const json& answer, const std::string& prefix,
                                            EtcdSnapshot& snapshot) {
  std::string last;
  for (const json& kv : answer.value("kvs", json::array())) {
    const auto key = FromBase64(kv.value("key", std::string()));
    const auto value = FromBase64(kv.value("value", std::string()));
    if (!key || !value || !key->starts_with(prefix)) {
      return Fail(Code::kUnavailable, "etcd's gateway gave a key that nobody asked for");
    }
    last = *key;
    std::string name = key->substr(prefix.size());
    if (name == "head") snapshot.head_modified = EtcdNumber(kv, "mod_revision");
    if (name == "leader") snapshot.leader_created = EtcdNumber(kv, "create_revision");
    snapshot.keys.insert_or_assign(std::move(name), *value);
  }
  if (!answer.value("more", false) || last.empty()) return std::optional<std::string>();
  return std::optional(last);
}

}  // namespace

Result<EtcdSnapshot> ReadSnapshot(EtcdClient& client, std::int64_t page, std::int64_t deadline_ns,
                                  const Clock& clock) {
  const std::string& prefix = client.options().place.prefix;
  const std::string end = EndOfPrefix(prefix);
  EtcdSnapshot snapshot;
  std::string from = prefix;
  while (true) {
    if (clock.NowNs() >= deadline_ns) {
      return Fail(Code::kTimeout, fmt::format("'{}' in etcd was not read in time", prefix));
    }
    const json request = RangeRequest(from, end, page, snapshot.revision);
    auto answer = client.Call("/v3/kv/range", request, deadline_ns, 5 * kSecond);
    if (!answer && answer.error().code == Code::kStale) {
      snapshot = {};  // etcd has compacted that revision: all pages must be of one moment
      from = prefix;
      continue;
    }
    if (!answer) return std::unexpected(answer.error());
    if (snapshot.revision == 0) snapshot.revision = EtcdNumber(answer->at("header"), "revision");
    KVCOVE_ASSIGN(const std::optional<std::string> last, TakePage(*answer, prefix, snapshot));
    if (!last) return snapshot;
    from = *last + '\0';
  }
}

namespace {

// Refuses a prefix below another pool's: its keys would count as damage there (ReadImage).
Status CheckParents(EtcdClient& client, std::int64_t deadline_ns) {
  const std::string& prefix = client.options().place.prefix;
  for (std::size_t at = prefix.find('/', 1); at + 1 < prefix.size() && at != std::string::npos;
       at = prefix.find('/', at + 1)) {
    const std::string head = prefix.substr(0, at + 1) + "head";
    const auto answer = client.Call("/v3/kv/range", {{"key", ToBase64(head)}}, deadline_ns);
    if (!answer && answer.error().code == Code::kDenied) continue;  // keys of another user
    if (!answer) return std::unexpected(answer.error());
    if (EtcdNumber(*answer, "count") == 0) continue;
    return Fail(Code::kIncompatible,
                fmt::format("'{}' in etcd lies within the prefix of another pool, '{}'", prefix,
                            prefix.substr(0, at + 1)));
  }
  return {};
}

// Asks for a transaction whose comparison never holds: etcd checks its permissions anyway.
Status CheckMayWrite(EtcdClient& client, std::int64_t deadline_ns) {
  const EtcdOptions& etcd = client.options();
  const std::string key = etcd.place.prefix + "head";
  const json never = json::object(
      {{"target", "VERSION"}, {"result", "LESS"}, {"key", ToBase64(key)}, {"version", "0"}});
  const auto answer =
      client.Call("/v3/kv/txn",
                  {{"compare", json::array({never})}, {"success", json::array({EtcdPut(key, "")})}},
                  deadline_ns);
  if (answer) return {};
  if (answer.error().code != Code::kDenied) return std::unexpected(answer.error());
  return Fail(Code::kDenied,
              fmt::format("{}: the user '{}' may read below '{}' and not write; grant it a role "
                          "with the permission readwrite for this prefix",
                          answer.error().detail, etcd.user.user, etcd.place.prefix));
}

}  // namespace

Status CheckEtcd(EtcdClient& client, std::int64_t deadline_ns, const Clock& clock) {
  KVCOVE_TRY(client.CheckEndpoints(deadline_ns));
  auto snapshot = ReadSnapshot(client, EtcdStoreOptions().page, deadline_ns, clock);
  if (!snapshot && snapshot.error().code == Code::kDenied) {
    const EtcdOptions& etcd = client.options();
    return Fail(Code::kDenied,
                fmt::format("{}: the user '{}' may not read below '{}'", snapshot.error().detail,
                            etcd.user.user, etcd.place.prefix));
  }
  if (!snapshot) return std::unexpected(client.Explain(snapshot.error(), deadline_ns));
  KVCOVE_TRY(ReadImage(snapshot->keys, client.options().place.prefix));
  KVCOVE_TRY(CheckParents(client, deadline_ns));
  return CheckMayWrite(client, deadline_ns);
}

// ---- the store

class EtcdStore::Core {
 public:
  Core(std::shared_ptr<EtcdLeadership> leadership, const EtcdStoreOptions& options,
       const Clock& clock)
      : leadership_(std::move(leadership)),
        options_(options),
        clock_(clock),
        client_(leadership_->etcd(), clock),
        prefix_(leadership_->etcd().place.prefix) {}
  ~Core() { Stop(); }

  Status Load(Opened& opened);
  Status Replace(const EtcdSnapshot& snapshot, const Facts& facts, std::uint64_t revision);
  Status Start() {
    KVCOVE_ASSIGN(thread_, StartThread("kvcove-store", [this] { Run(); }));
    return {};
  }
  void Stop();
  void Commit(std::vector<FactChange> changes, Done done);
  EtcdStoreStat stat() const;
  void Collect(Metrics& metrics) const;

 private:
  struct Waiting {
    std::vector<FactChange> changes;
    Done done;
    std::size_t bytes = 0;
  };
  // The changes of one transaction of etcd: those of several commits, the last one of each key.
  struct Batch {
    std::map<std::string, std::pair<std::optional<std::string>, std::uint64_t>> changes;
    std::vector<Done> done;
    std::size_t bytes = 0;
  };

  Status AdmitLocked(std::size_t bytes, bool grows) KVCOVE_REQUIRES(mutex_);
  void Run();
  // Waits for commits and takes as many as fit. Empty: the thread must end.
  Batch TakeBatch();
  void Finish(const Batch& batch, const Status& made, std::uint64_t first);
  Status Write(const Batch& batch);
  Status WriteInParts(const Batch& batch, const EtcdHead& head);
  // Moves changes from parts that the head counts to their places, then deletes the parts.
  Status ApplyParts();
  // Makes a transaction once, even if answers are lost. `next`: the head that it writes; null:
  // none, then it may be made again. Errors: the transaction was not made and never will be, or the
  // leadership is lost.
  Status Transact(json operations, const EtcdHead* next);
  // Handles a comparison that did not hold. Ok: an earlier attempt has made the transaction.
  Status Judge(const json& answer, const EtcdHead* next);
  // Returns the reason to end repetitions; nothing: continue.
  std::optional<Error> Over() const;
  json OperationOf(const std::string& key, const std::optional<std::string>& value,
                   std::uint64_t revision) const;
  void Remember(const Batch& batch);
  std::uint64_t FactsAfter(const Batch& batch) const;

  const std::shared_ptr<EtcdLeadership> leadership_;
  const EtcdStoreOptions options_;
  const Clock& clock_;

  // After Load, only the thread uses these.
  EtcdClient client_;
  const std::string prefix_;
  EtcdHead head_;
  std::int64_t head_modified_ = 0;
  std::vector<FactChange> unapplied_;
  bool stray_parts_ = false;
  std::map<std::string, std::size_t, std::less<>> sizes_;  // of the facts
  std::uint64_t facts_bytes_ = 0;

  Histogram times_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Waiting> queue_ KVCOVE_GUARDED_BY(mutex_);
  std::size_t queued_bytes_ KVCOVE_GUARDED_BY(mutex_) = 0;
  bool stops_ KVCOVE_GUARDED_BY(mutex_) = false;
  EtcdStoreStat stat_ KVCOVE_GUARDED_BY(mutex_);
  std::thread thread_;
};

Status EtcdStore::Core::Load(Opened& opened) {
  const std::int64_t until_ns = clock_.NowNs() + kEtcdLoadNs;
  KVCOVE_ASSIGN(EtcdSnapshot snapshot, ReadSnapshot(client_, options_.page, until_ns, clock_));
  // Otherwise another process has led since, and may write facts that this snapshot lacks.
  if (snapshot.leader_created != leadership_->create_revision()) {
    leadership_->Lose("the key of its leadership is gone");
    return Fail(Code::kUnavailable, leadership_->why_lost());
  }
  KVCOVE_ASSIGN(EtcdImage image, ReadImage(snapshot.keys, prefix_));
  head_ = image.head;
  head_modified_ = snapshot.head_modified;
  unapplied_ = std::move(image.unapplied);
  stray_parts_ = image.stray_parts;
  for (const auto& [key, fact] : image.facts) {
    sizes_[key] = fact.value.size();
    facts_bytes_ += key.size() + fact.value.size();
  }
  opened.revision = head_.revision;
  opened.found_nothing = !image.found;
  opened.facts = std::move(image.facts);
  const MutexLock lock(mutex_);
  stat_.revision = head_.revision;
  stat_.facts = sizes_.size();
  stat_.facts_bytes = facts_bytes_;
  return {};
}

// Each step writes the head, which counts facts that are not there yet, so a master that reads in
// between finds damage instead of fewer facts. A new head in each step also makes etcd refuse a
// late repetition of an earlier step.
Status EtcdStore::Core::Replace(const EtcdSnapshot& snapshot, const Facts& facts,
                                std::uint64_t revision) {
  head_modified_ = snapshot.head_modified;
  json operations =
      json::array({EtcdDeletePrefix(prefix_ + "fact/"), EtcdDeletePrefix(prefix_ + "part/")});
  std::size_t bytes = 0;
  const auto step = [&]() -> Status {
    const EtcdHead next{.revision = revision, .commit = RandomId(), .facts = facts.size()};
    operations.push_back(EtcdPut(prefix_ + "head", Encode(next)));
    bytes = 0;
    return Transact(std::exchange(operations, json::array()), &next);
  };
  KVCOVE_TRY(step());
  for (const auto& [key, fact] : facts) {
    operations.push_back(OperationOf(key, fact.value, fact.revision));
    bytes += kOperationBytes + fact.value.size();
    if (operations.size() + 2 >= kTransactionOperations || bytes > kTransactionBytes) {
      KVCOVE_TRY(step());
    }
  }
  return operations.empty() ? Status() : step();
}

Status EtcdStore::Core::AdmitLocked(std::size_t bytes, bool grows) {
  if (stops_) return Fail(Code::kUnavailable, "the control store is closed");
  if (!leadership_->Leads()) {
    return Fail(Code::kUnavailable, "etcd does not say that this master leads");
  }
  if (queue_.size() >= options_.max_queued || queued_bytes_ + bytes > options_.max_queued_bytes) {
    return Fail(Code::kUnavailable,
                fmt::format("etcd does not keep up: {} commits wait for it", queue_.size()));
  }
  if (grows && stat_.facts_bytes + queued_bytes_ + bytes > options_.max_facts_bytes) {
    return Fail(Code::kLimit, fmt::format("the facts below '{}' would exceed {} bytes", prefix_,
                                          options_.max_facts_bytes));
  }
  return {};
}

void EtcdStore::Core::Commit(std::vector<FactChange> changes, Done done) {
  Status status = CheckTransaction(changes);
  if (status) {
    const std::size_t bytes = TransactionBytes(changes);
    const bool grows = std::ranges::any_of(changes, [](const FactChange& c) { return !!c.value; });
    const MutexLock lock(mutex_);
    status = AdmitLocked(bytes, grows);
    if (status) {
      queue_.push_back({.changes = std::move(changes), .done = std::move(done), .bytes = bytes});
      queued_bytes_ += bytes;
      changed_.NotifyAll();
      return;
    }
  }
  done(std::unexpected<Error>(std::move(status).error()));
}

EtcdStore::Core::Batch EtcdStore::Core::TakeBatch() {
  Batch batch;
  const MutexLock lock(mutex_);
  while (queue_.empty() && !stops_) changed_.Wait(mutex_);
  // Once it stops, the rest of the queue fails in Run, in order.
  std::uint64_t revision = head_.revision;
  while (!queue_.empty() && !stops_) {
    Waiting& next = queue_.front();
    const std::size_t bytes = next.bytes + next.changes.size() * kOperationBytes;
    const bool fits = batch.changes.size() + next.changes.size() < kTransactionOperations &&
                      batch.bytes + bytes <= kTransactionBytes;
    if (!batch.done.empty() && !fits) break;
    ++revision;
    for (FactChange& change : next.changes) {
      batch.changes.insert_or_assign(std::move(change.key),
                                     std::pair(std::move(change.value), revision));
    }
    batch.done.push_back(std::move(next.done));
    batch.bytes += bytes;
    queued_bytes_ -= next.bytes;
    queue_.pop_front();
  }
  return batch;
}

void EtcdStore::Core::Run() {
  // Finishes the move that an earlier leader has left, before the first commit needs it.
  Status ready = head_.parts > 0 ? ApplyParts() : Status();
  while (true) {
    const Batch batch = TakeBatch();
    if (batch.done.empty()) break;
    if (!ready) ready = ApplyParts();
    const std::uint64_t first = head_.revision + 1;
    const Status made = ready ? Write(batch) : ready;
    Finish(batch, made, first);
    if (made && head_.parts > 0) ready = ApplyParts();
  }
  // `done` runs without the lock, and its Commit is refused because stops_ is set.
  std::deque<Waiting> left;
  {
    const MutexLock lock(mutex_);
    left.swap(queue_);
  }
  for (const Waiting& waiting : left) {
    waiting.done(Fail(Code::kUnavailable, "the control store was closed before etcd was asked"));
  }
}

void EtcdStore::Core::Finish(const Batch& batch, const Status& made, std::uint64_t first) {
  if (made) Remember(batch);
  {
    const MutexLock lock(mutex_);
    stat_.revision = head_.revision;
    stat_.facts = sizes_.size();
    stat_.facts_bytes = facts_bytes_;
  }
  // After the lock: `done` may commit.
  for (std::size_t i = 0; i < batch.done.size(); ++i) {
    if (made) {
      batch.done[i](first + i);
    } else {
      batch.done[i](std::unexpected(made.error()));
    }
  }
}

void EtcdStore::Core::Remember(const Batch& batch) {
  for (const auto& [key, change] : batch.changes) {
    if (const auto at = sizes_.find(key); at != sizes_.end()) {
      facts_bytes_ -= key.size() + at->second;
      sizes_.erase(at);
    }
    if (!change.first) continue;
    sizes_[key] = change.first->size();
    facts_bytes_ += key.size() + change.first->size();
  }
}

std::uint64_t EtcdStore::Core::FactsAfter(const Batch& batch) const {
  std::uint64_t facts = sizes_.size();
  for (const auto& [key, change] : batch.changes) {
    const bool there = sizes_.contains(key);
    if (change.first && !there) ++facts;
    if (!change.first && there) --facts;
  }
  return facts;
}

json EtcdStore::Core::OperationOf(const std::string& key, const std::optional<std::string>& value,
                                  std::uint64_t revision) const {
  const std::string full = prefix_ + "fact/" + key;
  if (!value) return EtcdDelete(full);
  return EtcdPut(full, EncodeFact(key, {.value = *value, .revision = revision}));
}

Status EtcdStore::Core::Write(const Batch& batch) {
  EtcdHead next{.revision = head_.revision + batch.done.size(),
                .commit = RandomId(),
                .parts = 0,
                .facts = FactsAfter(batch)};
  // One operation is for the head.
  if (batch.changes.size() >= kTransactionOperations || batch.bytes > kTransactionBytes) {
    return WriteInParts(batch, next);
  }
  json operations = json::array();
  for (const auto& [key, change] : batch.changes) {
    operations.push_back(OperationOf(key, change.first, change.second));
  }
  operations.push_back(EtcdPut(prefix_ + "head", Encode(next)));
  return Transact(std::move(operations), &next);
}

// Writes a large commit: first its parts, then a head that counts them, which makes it durable. The
// batch is one commit (TakeBatch), so all its changes have one revision.
Status EtcdStore::Core::WriteInParts(const Batch& batch, const EtcdHead& head) {
  EtcdHead next = head;
  std::vector<FactChange> changes;
  for (const auto& [key, change] : batch.changes) changes.push_back({key, change.first});
  const std::vector<std::string> parts = EncodeParts(changes, next.revision);
  next.parts = static_cast<std::uint32_t>(parts.size());
  // Deletes the parts of an attempt that failed, here or under an earlier leader: no head counts
  // them. This step and the parts leave the head as it is, so etcd does not refuse a late
  // repetition of one of them until the head below is written.
  if (stray_parts_) {
    KVCOVE_TRY(Transact(json::array({EtcdDeletePrefix(prefix_ + "part/")}), nullptr));
  }
  stray_parts_ = true;
  for (std::uint32_t i = 0; i < next.parts; ++i) {
    const std::string key = prefix_ + PartKey(next.revision, i);
    KVCOVE_TRY(Transact(json::array({EtcdPut(key, parts[i])}), nullptr));
  }
  KVCOVE_TRY(Transact(json::array({EtcdPut(prefix_ + "head", Encode(next))}), &next));
  unapplied_ = std::move(changes);
  return {};
}

Status EtcdStore::Core::ApplyParts() {
  json operations = json::array();
  std::size_t bytes = 0;
  const auto flush = [&]() -> Status {
    if (operations.empty()) return {};
    bytes = 0;
    return Transact(std::exchange(operations, json::array()), nullptr);
  };
  for (const FactChange& change : unapplied_) {
    operations.push_back(OperationOf(change.key, change.value, head_.revision));
    bytes += kOperationBytes + (change.value ? change.value->size() : 0);
    if (operations.size() + 1 >= kTransactionOperations || bytes > kTransactionBytes) {
      KVCOVE_TRY(flush());
    }
  }
  KVCOVE_TRY(flush());
  // Only now: a leader that dies earlier leaves the parts, and the next one moves them again.
  EtcdHead next = head_;
  next.parts = 0;
  next.commit = RandomId();
  KVCOVE_TRY(Transact(
      json::array({EtcdPut(prefix_ + "head", Encode(next)), EtcdDeletePrefix(prefix_ + "part/")}),
      &next));
  unapplied_.clear();
  stray_parts_ = false;
  return {};
}

std::optional<Error> EtcdStore::Core::Over() const {
  if (leadership_->lost()) {
    return Error{Code::kUnavailable,
                 fmt::format("this master does not lead any more: {}", leadership_->why_lost())};
  }
  const MutexLock lock(mutex_);
  if (!stops_) return std::nullopt;
  return Error{Code::kUnavailable, "the control store was closed before etcd answered"};
}

Status EtcdStore::Core::Judge(const json& answer, const EtcdHead* next) {
  const json leader = EtcdRangeOf(answer, 0);
  const json head = EtcdRangeOf(answer, 1);
  const auto only = [](const json& range) {
    const json kvs = range.value("kvs", json::array());
    return kvs.empty() ? json::object() : kvs[0];
  };
  if (EtcdNumber(only(leader), "create_revision") != leadership_->create_revision()) {
    leadership_->Lose("another master has taken the leadership over in etcd");
    return Fail(Code::kUnavailable, "another master leads");
  }
  const auto value = FromBase64(only(head).value("value", std::string()));
  const auto found = DecodeHead(value.value_or(""));
  // An attempt whose answer was lost has been made: the head has the mark of this transaction.
  if (next != nullptr && found && found->commit == next->commit) {
    head_ = *next;
    head_modified_ = EtcdNumber(only(head), "mod_revision");
    return {};
  }
  leadership_->Lose("somebody who does not lead has written below its prefix in etcd");
  return Fail(Code::kUnavailable, leadership_->why_lost());
}

Status EtcdStore::Core::Transact(json operations, const EtcdHead* next) {
  const std::string leader = prefix_ + "leader";
  const std::string head = prefix_ + "head";
  const json body = {
      {"compare", json::array({EtcdCompareCreated(leader, leadership_->create_revision()),
                               EtcdCompareModified(head, head_modified_)})},
      {"success", std::move(operations)},
      {"failure", json::array({EtcdGet(leader), EtcdGet(head)})}};
  bool unsure = false;
  while (true) {
    if (const auto over = Over()) return std::unexpected(*over);
    const std::int64_t began_ns = clock_.NowNs();
    const auto answer = client_.Call("/v3/kv/txn", body, began_ns + kCallNs, options_.attempt_ns);
    if (answer) {
      const std::int64_t took_ns = clock_.NowNs() - began_ns;
      times_.Add(took_ns);
      {
        const MutexLock lock(mutex_);
        ++stat_.transactions;
        stat_.latency_ns = took_ns;
      }
      if (!answer->value("succeeded", false)) return Judge(*answer, next);
      if (next == nullptr) return {};
      // The transaction wrote the head, so the answer's revision is the head's modification.
      head_ = *next;
      head_modified_ = EtcdNumber(answer->at("header"), "revision");
      return {};
    }
    // A refusal is final only if no earlier attempt is without an answer: that one may have been
    // made, or may still be.
    if (answer.error().answered && !unsure) return std::unexpected(answer.error());
    if (!std::exchange(unsure, true)) {
      LogWarn("a transaction of etcd has no answer ({}); it is repeated until there is one",
              answer.error().detail);
    }
    const MutexLock lock(mutex_);
    ++stat_.repeated;
    if (!stops_) changed_.WaitFor(mutex_, std::chrono::nanoseconds(kRepeatNs));
  }
}

EtcdStoreStat EtcdStore::Core::stat() const {
  const MutexLock lock(mutex_);
  EtcdStoreStat stat = stat_;
  stat.queued = queue_.size();
  return stat;
}

void EtcdStore::Core::Collect(Metrics& metrics) const {
  const EtcdStoreStat now = stat();
  metrics.Histogram("kvcove_master_store_seconds",
                    "seconds from the start of a transaction of etcd to its answer", times_);
  metrics.Counter("kvcove_master_store_repeated_total",
                  "transactions of etcd that were sent again because no answer came",
                  static_cast<double>(now.repeated));
  metrics.Gauge("kvcove_master_store_queued", "commits that wait for etcd",
                static_cast<double>(now.queued));
  metrics.Gauge("kvcove_master_store_facts", "facts of the pool in etcd",
                static_cast<double>(now.facts));
  metrics.Gauge("kvcove_master_store_bytes", "bytes of the pool's facts in etcd",
                static_cast<double>(now.facts_bytes));
}

void EtcdStore::Core::Stop() {
  {
    const MutexLock lock(mutex_);
    stops_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

EtcdStore::EtcdStore(std::unique_ptr<Core> core) : core_(std::move(core)) {}
EtcdStore::~EtcdStore() = default;

Result<std::unique_ptr<EtcdStore>> EtcdStore::Open(std::shared_ptr<EtcdLeadership> leadership,
                                                   const EtcdStoreOptions& options,
                                                   const Clock& clock, Opened& opened) {
  auto core = std::make_unique<Core>(std::move(leadership), options, clock);
  KVCOVE_TRY(core->Load(opened));
  KVCOVE_TRY(core->Start());
  return std::unique_ptr<EtcdStore>(new EtcdStore(std::move(core)));
}

Status EtcdStore::Replace(std::shared_ptr<EtcdLeadership> leadership, const EtcdSnapshot& snapshot,
                          const Facts& facts, std::uint64_t revision, const Clock& clock) {
  Core core(std::move(leadership), {}, clock);
  return core.Replace(snapshot, facts, revision);
}

void EtcdStore::Commit(std::vector<FactChange> changes, Done done) {
  core_->Commit(std::move(changes), std::move(done));
}
EtcdStoreStat EtcdStore::stat() const { return core_->stat(); }
void EtcdStore::Collect(Metrics& metrics) const { core_->Collect(metrics); }

}  // namespace kvcove::master
