// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/store/file_store.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"

namespace kvcove::master {
namespace {

// A rewrite that only saves room may wait for longer than one that blocks commits.
constexpr std::int64_t kCompactAgainNs = 10 * kSecond;
// The thread tries again after this when the disk is not ready or refuses.
constexpr std::int64_t kLookAgainNs = 20 * kMillisecond;
// The thread checks this often whether the file was removed.
constexpr std::int64_t kLookForRemovalNs = kSecond;
// Dead bytes for each live one, from which on the file is rewritten.
constexpr std::uint64_t kDeadFactor = 2;
// Between two attempts to rewrite the file after a fault: doubled from the first to the second.
constexpr std::int64_t kFirstRetryNs = 100 * kMillisecond;
constexpr std::int64_t kMaxRetryNs = kSecond;
// How long the destructor waits for the disk.
constexpr std::int64_t kCloseTimeoutNs = 2 * kSecond;
constexpr auto kEndOfThread = std::chrono::milliseconds(100);

}  // namespace

class FileStore::Core {
 public:
  Core(std::unique_ptr<FileSystem> disk, const FileStoreOptions& options)
      : options_(options), file_(std::move(disk)) {}

  Status Load(Opened& opened);
  void Commit(std::vector<FactChange> changes, Done done);
  bool Work();
  void RetireV1();
  void RunThread();
  FileStoreStat stat() const;

  // Close's steps, in this order.
  void Refuse();  // refuses later commits
  void AwaitDrained(std::chrono::steady_clock::time_point until);
  bool StopThread(std::chrono::steady_clock::time_point until);  // false: a disk call hangs
  // Fails the commits without an answer; returns false when there are none. A thread that hangs
  // then has no `done` left to call when the disk returns.
  bool Abandon();
  bool drained() const;

 private:
  struct Queue {
    ControlFile::Transactions transactions;
    std::vector<Done> done;  // of each
    std::size_t bytes = 0;
  };

  Status AdmitLocked(std::size_t bytes) KVCOVE_REQUIRES(mutex_);
  void LookForRemoval();
  bool RewriteIsDue();
  bool Rewrite();  // false: a fault
  bool TakeBatch();
  bool Append();
  bool Finish();
  bool Retire();
  void Fault(const Error& error);
  std::vector<Done> TakeAnswersLocked() KVCOVE_REQUIRES(mutex_);
  bool stops() const;
  void Publish() KVCOVE_REQUIRES(mutex_);

  const FileStoreOptions options_;

  // Only Work uses these.
  ControlFile file_;
  ControlFile::Transactions appended_;  // not synced yet
  bool sync_is_due_ = false;
  std::int64_t retry_at_ns_ = 0;
  std::int64_t retry_ns_ = 0;  // 0: no fault
  std::int64_t compact_at_ns_ = 0;
  std::int64_t look_at_ns_ = 0;

  mutable Mutex mutex_;
  CondVar changed_;  // new work, the end of a batch, the end of the thread
  Queue queue_ KVCOVE_GUARDED_BY(mutex_);
  std::vector<Done> in_flight_ KVCOVE_GUARDED_BY(mutex_);  // of the batch that Work writes
  bool works_ KVCOVE_GUARDED_BY(mutex_) = false;           // Work has a batch, or calls its `done`
  bool closed_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool retires_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool stops_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool ended_ KVCOVE_GUARDED_BY(mutex_) = false;
  FileStoreStat stat_ KVCOVE_GUARDED_BY(mutex_);
};

Status FileStore::Core::Load(Opened& opened) {
  KVCOVE_TRY(file_.Load(opened));
  MutexLock lock(mutex_);
  Publish();
  return {};
}

void FileStore::Core::Publish() {
  stat_.revision = file_.revision();
  stat_.facts = file_.facts().size();
  stat_.file_bytes = file_.file_bytes();
  stat_.live_bytes = file_.live_bytes();
}

Status FileStore::Core::AdmitLocked(std::size_t bytes) {
  if (closed_) return Fail(Code::kUnavailable, "the control store is closed");
  if (!stat_.refuses.empty()) return Fail(Code::kUnavailable, stat_.refuses);
  if (queue_.done.size() >= options_.max_queued ||
      queue_.bytes + bytes > options_.max_queued_bytes) {
    return Fail(Code::kUnavailable,
                fmt::format("the disk of '{}' does not keep up: {} commits wait for it already",
                            file_.path(), queue_.done.size()));
  }
  return {};
}

void FileStore::Core::Commit(std::vector<FactChange> changes, Done done) {
  Status status = CheckTransaction(changes);
  if (status) {
    const std::size_t bytes = TransactionBytes(changes);
    const bool grows = std::any_of(changes.begin(), changes.end(),
                                   [](const FactChange& change) { return !!change.value; });
    MutexLock lock(mutex_);
    status = AdmitLocked(bytes);
    if (status && grows && stat_.live_bytes + queue_.bytes + bytes > options_.max_facts_bytes) {
      status = Fail(Code::kLimit, fmt::format("the facts in '{}' would exceed {} bytes",
                                              file_.path(), options_.max_facts_bytes));
    }
    if (status) {
      queue_.transactions.push_back(std::move(changes));
      queue_.done.push_back(std::move(done));
      queue_.bytes += bytes;
      changed_.NotifyAll();
      return;
    }
  }
  done(std::unexpected<Error>(std::move(status).error()));
}

bool FileStore::Core::Work() {
  if (!file_.Ready()) return false;
  if (sync_is_due_) return Finish();  // in a simulation only: the disk was not ready after Append
  LookForRemoval();
  const bool rewrites = RewriteIsDue();
  if (rewrites && !Rewrite()) return true;
  if (!file_.known()) return false;
  if (TakeBatch()) return Append();
  return Retire() || rewrites;
}

// Checks that the file still has its name: no start would find later commits in a file without one.
// A removal is a fault like any other: waiting commits fail, and the file is written anew.
void FileStore::Core::LookForRemoval() {
  if (!file_.known() || options_.clock->NowNs() < look_at_ns_) return;
  look_at_ns_ = options_.clock->NowNs() + kLookForRemovalNs;
  const Result<bool> keeps = file_.Keeps();
  if (keeps && *keeps) return;
  file_.Lose();
  Fault(keeps ? Error{.code = Code::kUnavailable,
                      .detail = "it was removed or replaced while this process had it open"}
              : keeps.error());
}

bool FileStore::Core::RewriteIsDue() {
  const std::int64_t now_ns = options_.clock->NowNs();
  if (file_.known()) {
    const std::uint64_t dead =
        file_.file_bytes() - std::min(file_.file_bytes(), file_.live_bytes());
    return dead > options_.min_dead_bytes && dead > kDeadFactor * file_.live_bytes() &&
           now_ns >= compact_at_ns_;
  }
  if (retry_ns_ > 0) return now_ns >= retry_at_ns_;
  MutexLock lock(mutex_);
  return !queue_.done.empty();
}

bool FileStore::Core::Rewrite() {
  if (const Status status = file_.Rewrite(); !status) {
    if (!file_.known()) {
      Fault(status.error());
      return false;
    }
    compact_at_ns_ = options_.clock->NowNs() + kCompactAgainNs;
    LogWarn("'{}' grows, because it cannot be written anew: {}", file_.path(),
            status.error().ToString());
    return true;
  }
  if (retry_ns_ > 0) LogInfo("the control store works again: '{}'", file_.path());
  retry_ns_ = 0;
  MutexLock lock(mutex_);
  stat_.refuses.clear();
  ++stat_.rewrites;
  Publish();
  return true;
}

bool FileStore::Core::TakeBatch() {
  MutexLock lock(mutex_);
  if (queue_.done.empty()) return false;
  appended_ = std::move(queue_.transactions);
  in_flight_ = std::move(queue_.done);
  queue_ = {};
  works_ = true;
  return true;
}

bool FileStore::Core::Append() {
  if (const Status status = file_.Append(appended_); !status) {
    Fault(status.error());
    return true;
  }
  sync_is_due_ = true;
  return file_.Ready() && Finish();
}

bool FileStore::Core::Finish() {
  sync_is_due_ = false;
  const Result<std::uint64_t> first = file_.Sync(std::exchange(appended_, {}));
  if (!first) {
    Fault(first.error());
    return true;
  }
  // Abandon may have taken the answers already, if Close left this thread behind.
  std::vector<Done> done;
  {
    MutexLock lock(mutex_);
    done = std::exchange(in_flight_, {});
    ++stat_.batches;
    Publish();
  }
  for (std::size_t i = 0; i < done.size(); ++i) done[i](*first + i);
  done.clear();
  MutexLock lock(mutex_);
  works_ = false;
  changed_.NotifyAll();
  return true;
}

// Fails all waiting commits. Any part of the batch may be in the file, and a later append would
// make it durable although its callers get an error. So only a rewrite from the mirror helps.
void FileStore::Core::Fault(const Error& error) {
  const bool begins = retry_ns_ == 0;
  retry_ns_ = begins ? kFirstRetryNs : std::min(2 * retry_ns_, kMaxRetryNs);
  retry_at_ns_ = options_.clock->NowNs() + retry_ns_;
  appended_.clear();
  const std::string reason =
      fmt::format("the control store cannot write '{}': {}", file_.path(), error.detail);
  if (begins) {
    LogError("{}; nothing stored is lost, but nothing new is accepted; it tries again by itself",
             reason);
  }
  std::vector<Done> done;
  {
    MutexLock lock(mutex_);
    stat_.refuses = reason;
    works_ = true;
    done = TakeAnswersLocked();
  }
  for (const Done& each : done) each(Fail(Code::kUnavailable, reason));
  done.clear();
  MutexLock lock(mutex_);
  works_ = false;
  changed_.NotifyAll();
}

std::vector<ControlStore::Done> FileStore::Core::TakeAnswersLocked() {
  std::vector<Done> done = std::exchange(in_flight_, {});
  std::move(queue_.done.begin(), queue_.done.end(), std::back_inserter(done));
  queue_ = {};
  return done;
}

void FileStore::Core::RetireV1() {
  MutexLock lock(mutex_);
  retires_ = true;
  changed_.NotifyAll();
}

bool FileStore::Core::Retire() {
  {
    MutexLock lock(mutex_);
    // Before the first commit the old file is the only place that has these records.
    if (!retires_ || file_.revision() == 0) return false;
    retires_ = false;
  }
  if (const Status status = file_.RetireV1(); !status) {
    LogWarn("the file of format version 1 is not needed any more, but stays: {}",
            status.error().ToString());
  }
  return true;
}

void FileStore::Core::RunThread() {
  while (true) {
    while (!stops() && Work()) {
    }
    const bool waits_for_disk = !file_.Ready() || sync_is_due_;
    const bool may_retire = file_.known() && file_.revision() > 0;
    MutexLock lock(mutex_);
    if (stops_) {
      ended_ = true;
      changed_.NotifyAll();
      return;
    }
    const bool more = !queue_.done.empty() || (retires_ && may_retire);
    if (!stat_.refuses.empty() || waits_for_disk) {
      changed_.WaitFor(mutex_, std::chrono::nanoseconds(kLookAgainNs));
    } else if (!more) {
      changed_.WaitFor(mutex_, std::chrono::nanoseconds(kLookForRemovalNs));
    }
  }
}

FileStoreStat FileStore::Core::stat() const {
  MutexLock lock(mutex_);
  FileStoreStat stat = stat_;
  stat.queued = queue_.done.size();
  return stat;
}

void FileStore::Core::Refuse() {
  MutexLock lock(mutex_);
  closed_ = true;
}

bool FileStore::Core::drained() const {
  MutexLock lock(mutex_);
  return queue_.done.empty() && !works_;
}

void FileStore::Core::AwaitDrained(std::chrono::steady_clock::time_point until) {
  MutexLock lock(mutex_);
  while ((!queue_.done.empty() || works_) && changed_.WaitUntil(mutex_, until)) {
  }
}

bool FileStore::Core::StopThread(std::chrono::steady_clock::time_point until) {
  MutexLock lock(mutex_);
  stops_ = true;
  changed_.NotifyAll();
  while (!ended_ && changed_.WaitUntil(mutex_, until)) {
  }
  return ended_;
}

bool FileStore::Core::stops() const {
  MutexLock lock(mutex_);
  return stops_;
}

bool FileStore::Core::Abandon() {
  std::vector<Done> done;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    done = TakeAnswersLocked();
  }
  const std::string reason =
      fmt::format("the control store was closed before '{}' was written", file_.path());
  for (const Done& each : done) each(Fail(Code::kUnavailable, reason));
  return !done.empty();
}

Result<std::unique_ptr<FileStore>> FileStore::Open(std::unique_ptr<FileSystem> disk,
                                                   const FileStoreOptions& options,
                                                   Opened& opened) {
  auto core = std::make_shared<Core>(std::move(disk), options);
  KVCOVE_TRY(core->Load(opened));
  return std::unique_ptr<FileStore>(new FileStore(std::move(core), options));
}

FileStore::~FileStore() {
  // A simulation destroys the store to kill its process, so the disk is not touched.
  if (!thread_.joinable()) {
    core_->Abandon();
    return;
  }
  (void)Close(clock_.NowNs() + kCloseTimeoutNs);
}

void FileStore::Commit(std::vector<FactChange> changes, Done done) {
  core_->Commit(std::move(changes), std::move(done));
}

Status FileStore::Start() {
  if (thread_.joinable()) return {};
  KVCOVE_ASSIGN(thread_, StartThread("kvcove-store", [core = core_] { core->RunThread(); }));
  return {};
}

bool FileStore::Work() { return core_->Work(); }

void FileStore::RetireV1() { core_->RetireV1(); }

Status FileStore::Close(std::int64_t deadline_ns) {
  const std::int64_t left_ns = std::max<std::int64_t>(0, deadline_ns - clock_.NowNs());
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(left_ns);
  core_->Refuse();
  if (thread_.joinable()) {
    core_->AwaitDrained(until);
    // An idle thread ends at once, also if the deadline has just passed.
    if (core_->StopThread(until + kEndOfThread)) {
      thread_.join();
    } else {
      // The thread owns a reference to the core, and so keeps the disk and its lock.
      thread_.detach();
    }
  } else {
    while (!core_->drained() && std::chrono::steady_clock::now() < until && core_->Work()) {
    }
  }
  if (!core_->Abandon()) return {};
  return Fail(Code::kTimeout, "the disk did not answer before the control store was closed");
}

FileStoreStat FileStore::stat() const { return core_->stat(); }

}  // namespace kvcove::master
