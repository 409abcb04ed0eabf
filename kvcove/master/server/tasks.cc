// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/tasks.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/size.h"

namespace kvcove::master {
namespace {

constexpr std::int64_t kLongestRepairPauseNs = 600 * kSecond;
constexpr std::uint32_t kPage = 1024;   // objects of one inventory call
constexpr std::size_t kMaxTasks = 256;  // remembered: waiting, running and ended ones
constexpr std::uint32_t kCopyBudgetMs = 20'000;
constexpr std::int64_t kWatchOwnersNs = 500 * kMillisecond;
// After this, an owner that renews its lease every 250 ms knows that it is draining.
constexpr std::int64_t kDrainSettlesNs = 700 * kMillisecond;
constexpr int kMaxWalks = 20;
constexpr std::uint64_t kCopyBytes = 256 * kMiB;  // of one call: a disk reads that in its time
constexpr std::string_view kOrUnread = ", or could not be read from their disk,";
constexpr std::int64_t kDirectoryNs = 10 * kSecond;  // longest wait for the whole directory
constexpr int kMaxTargets = 3;                       // tried for one object

// Returns whether the owner may get objects from a task.
bool Takes(const wire::OwnerStat& owner) { return owner.live && !owner.draining; }

}  // namespace

std::string_view TaskKindName(TaskKind kind) {
  switch (kind) {
    case TaskKind::kCopy:
      return "copy";
    case TaskKind::kMove:
      return "move";
    case TaskKind::kDrain:
      return "drain";
    case TaskKind::kRepair:
      return "repair";
  }
  return "unknown";
}

std::string_view TaskStateName(TaskState state) {
  switch (state) {
    case TaskState::kQueued:
      return "queued";
    case TaskState::kRunning:
      return "running";
    case TaskState::kDone:
      return "done";
    case TaskState::kFailed:
      return "failed";
    case TaskState::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

Tasks::Tasks(MasterServer& cluster, const TaskOptions& options, const Clock& clock)
    : cluster_(cluster), options_(options), clock_(clock) {}

Status Tasks::Begin() {
  KVCOVE_ASSIGN(thread_, StartThread("kvcove-tasks", [this] { Run(); }));
  return {};
}

Tasks::~Tasks() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    ends_ = true;
    for (const auto& task : tasks_) task->cancel = true;
    changed_.NotifyAll();
  }
  JoinIfStarted(thread_);
}

Result<wire::OwnerStat> Tasks::Live(const std::string& address) const {
  std::string at_host;
  for (const wire::OwnerStat& owner : cluster_.Owners()) {
    if (owner.address == address && owner.live) return owner;
    if (owner.address.starts_with(address + ":") && owner.live) at_host = owner.address;
  }
  return Fail(
      Code::kInvalid,
      fmt::format("no owner at '{}' is alive; {}'kvcove admin segments' lists them", address,
                  at_host.empty() ? std::string() : fmt::format("did you mean '{}'? ", at_host)));
}

Result<std::uint64_t> Tasks::Start(const TaskRequest& request) {
  if (request.kind != TaskKind::kRepair) {
    KVCOVE_ASSIGN(const wire::OwnerStat from, Live(request.from));
    if (!request.to.empty()) KVCOVE_TRY(Live(request.to));
    if (request.from == request.to) return Fail(Code::kInvalid, "'from' and 'to' are the same");
    // Now, not when the task runs: while it waits for its turn, no new objects gather at the owner.
    if (request.kind == TaskKind::kDrain) {
      KVCOVE_TRY(cluster_.master().control().SetDraining(from.number, true));
      Result<std::uint64_t> queued = Queue(request, /*asked_for=*/true);
      // Nobody could cancel a drain without a task. An earlier drain of this owner goes on.
      if (!queued && !from.draining) {
        (void)cluster_.master().control().SetDraining(from.number, false);
      }
      return queued;
    }
  }
  return Queue(request, /*asked_for=*/true);
}

Result<std::uint64_t> Tasks::Queue(const TaskRequest& request, bool asked_for) {
  const MutexLock lock(mutex_);
  while (tasks_.size() >= kMaxTasks) {
    // Tasks run in their order, so behind an unfinished one none has ended but by Cancel.
    if (tasks_.front()->stat.state <= TaskState::kRunning) {
      return Fail(Code::kLimit, "too many tasks are waiting");
    }
    tasks_.pop_front();
  }
  auto task = std::make_shared<Task>();
  task->stat.id = next_id_++;
  task->stat.request = request;
  task->asked_for = asked_for;
  tasks_.push_back(task);
  changed_.NotifyAll();
  return task->stat.id;
}

Status Tasks::Cancel(std::uint64_t id) {
  TaskRequest request;
  {
    const MutexLock lock(mutex_);
    const auto task = std::ranges::find(tasks_, id, [](const auto& one) { return one->stat.id; });
    if (task == tasks_.end()) return Fail(Code::kMiss, fmt::format("no task {}", id));
    (*task)->cancel = true;
    if ((*task)->stat.state == TaskState::kQueued) (*task)->stat.state = TaskState::kCancelled;
    request = (*task)->stat.request;
  }
  // A drain that is given up, or undone after its end: the owner takes objects again.
  if (request.kind != TaskKind::kDrain) return {};
  for (const wire::OwnerStat& owner : cluster_.Owners()) {
    if (owner.address == request.from)
      (void)cluster_.master().control().SetDraining(owner.number, false);
  }
  return {};
}

std::vector<TaskStat> Tasks::List() const {
  std::vector<TaskStat> stats;
  const MutexLock lock(mutex_);
  for (auto task = tasks_.rbegin(); task != tasks_.rend(); ++task) {
    stats.push_back((*task)->stat);
    if (stats.back().state == TaskState::kRunning) {
      stats.back().seconds = static_cast<double>(clock_.NowNs() - (*task)->began_ns) * 1e-9;
    }
  }
  return stats;
}

void Tasks::Collect(Metrics& metrics) const {
  const MutexLock lock(mutex_);
  metrics.Counter("kvcove_master_task_objects_total", "objects that tasks have copied or moved",
                  static_cast<double>(copied_));
  metrics.Counter("kvcove_master_task_bytes_total", "bytes that tasks have copied or moved",
                  static_cast<double>(copied_bytes_));
  const auto running = std::ranges::count_if(
      tasks_, [](const auto& task) { return task->stat.state <= TaskState::kRunning; });
  metrics.Gauge("kvcove_master_tasks_unfinished", "tasks that run or wait",
                static_cast<double>(running));
}

bool Tasks::Sleep(std::int64_t duration_ns) {
  const MutexLock lock(mutex_);
  if (!stopping_) changed_.WaitFor(mutex_, std::chrono::nanoseconds(duration_ns));
  return !stopping_;
}

bool Tasks::Cancelled(const Task& task) const {
  const MutexLock lock(mutex_);
  return task.cancel || stopping_;
}

// ---- the thread

void Tasks::Run() {
  while (true) {
    std::shared_ptr<Task> next;
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
      for (const auto& task : tasks_) {
        if (task->stat.state == TaskState::kQueued) {
          next = task;
          break;
        }
      }
      if (next != nullptr) {
        next->stat.state = TaskState::kRunning;
        next->began_ns = clock_.NowNs();
      }
    }
    if (next != nullptr) {
      RunTask(*next);
      continue;
    }
    if (!Sleep(kWatchOwnersNs)) return;
    WatchOwners();
  }
}

void Tasks::WatchOwners() {
  std::string owners;
  for (const wire::OwnerStat& owner : cluster_.Owners()) {
    if (Takes(owner)) owners += fmt::format("{}/{} ", owner.number, owner.epoch);
  }
  const std::int64_t now = clock_.NowNs();
  if (owners != seen_owners_) {
    seen_owners_ = owners;
    seen_since_ns_ = now;
    repair_pause_ns_ = 0;
  }
  const std::int64_t pause_ns = std::max(options_.repair_delay_ns, repair_pause_ns_);
  if (owners == repaired_owners_ || now < seen_since_ns_ + pause_ns) return;
  repaired_owners_ = owners;
  // A single owner leaves no other place for a replica.
  if (std::ranges::count(owners, ' ') >= 2) {
    (void)Queue({.kind = TaskKind::kRepair}, /*asked_for=*/false);
  }
}

void Tasks::RunTask(Task& task) {
  const TaskRequest& request = task.stat.request;
  Status done;
  if (request.kind == TaskKind::kRepair) {
    done = Repair(task);
  } else {
    const Result<wire::OwnerStat> from = Live(request.from);
    if (!from) {
      done = std::unexpected(from.error());
    } else {
      done = request.kind == TaskKind::kDrain ? Drain(task, *from) : RunOver(task, *from);
    }
  }
  // Owners that restart may have other addresses: channels that are kept would add up.
  channels_.clear();
  // Declared before the lock, so its log lines are written after it.
  LinesAfterLock lines;
  const MutexLock lock(mutex_);
  TaskStat& stat = task.stat;
  stat.seconds = static_cast<double>(clock_.NowNs() - task.began_ns) * 1e-9;
  if (task.cancel) {
    stat.state = TaskState::kCancelled;
  } else {
    stat.state = done ? TaskState::kDone : TaskState::kFailed;
    if (!done) stat.message = done.error().detail;
  }
  // WatchOwners queues a failed repair again, later each time: an owner that renews its lease and
  // cannot be reached would otherwise have the others' objects walked again and again.
  if (!task.asked_for && !done) {
    repaired_owners_.clear();
    seen_since_ns_ = clock_.NowNs();
    repair_pause_ns_ = std::clamp(2 * repair_pause_ns_, options_.repair_delay_ns,
                                  std::max(options_.repair_delay_ns, kLongestRepairPauseNs));
    std::erase_if(tasks_, [&](const auto& one) {
      return one.get() != &task && !one->asked_for && one->stat.state == TaskState::kFailed &&
             one->stat.copied == 0;
    });
  }
  // A repair that began by itself and found nothing to do is not worth a line. Run still holds the
  // task.
  if (!task.asked_for && done && stat.copied == 0) {
    std::erase_if(tasks_, [&](const auto& one) { return one.get() == &task; });
    return;
  }
  lines.Info("task {} ({}{}{}) {}: {} objects, {}, in {:.1f} s{}{}", stat.id,
             TaskKindName(request.kind), request.from.empty() ? "" : " of ", request.from,
             TaskStateName(stat.state), stat.copied, FormatSize(stat.copied_bytes), stat.seconds,
             stat.message.empty() ? "" : "; ", stat.message);
}

// With disks the walk is repeated until it finds nothing more: an object that moves leaves its
// zone, and may hide another object from the walk (owner/disk/object_pages.h). A copy without a
// target is walked once: each further walk would find yet another owner to copy to.
Status Tasks::RunOver(Task& task, const wire::OwnerStat& from) {
  const TaskRequest& request = task.stat.request;
  const bool ends = request.kind == TaskKind::kMove || !request.to.empty();
  Walked walked;
  for (int walk = 0; walk < kMaxWalks && !Cancelled(task); ++walk) {
    KVCOVE_ASSIGN(walked, Walk(task, from));
    if (!walked.disks || !ends || walked.left == walked.wanted) break;
  }
  {
    const MutexLock lock(mutex_);
    task.stat.left = walked.left;
    if (!walked.disks && HasDisk(from)) {
      task.stat.message = "objects that are on the owner's disk only were not looked at";
    }
  }
  if (walked.left == 0) return {};
  return Fail(Code::kNoSpace, fmt::format("{} objects found no room elsewhere{}", walked.left,
                                          walked.disks ? kOrUnread : ""));
}

Status Tasks::Drain(Task& task, const wire::OwnerStat& from) {
  // The owner takes new objects until it knows of the drain, so the last walk must begin after
  // that.
  const std::int64_t settled_ns = clock_.NowNs() + kDrainSettlesNs;
  bool disks = false;
  for (int walk = 0; walk < kMaxWalks && !Cancelled(task); ++walk) {
    const bool settled = clock_.NowNs() >= settled_ns;
    if (const Status drains = StillDrains(from); !drains) {
      if (Cancelled(task)) break;
      return drains;
    }
    const std::uint64_t before = task.stat.copied;
    KVCOVE_ASSIGN(const Walked walked, Walk(task, from));
    disks = walked.disks;
    {
      const MutexLock lock(mutex_);
      task.stat.left = walked.left;
    }
    // With disks the last walk finds nothing: see RunOver.
    if (settled && walked.left == 0 && (!disks || walked.wanted == 0)) {
      const bool stays = !disks && HasDisk(from);
      const MutexLock lock(mutex_);
      task.stat.message =
          stays ? "everything in memory is elsewhere; objects that are on the owner's disk only "
                  "stay there, and return with it"
                : "everything is elsewhere: the owner may be stopped; its next process takes "
                  "objects again";
      return {};
    }
    // Another walk would fail in the same way.
    if (settled && walked.left > 0 && task.stat.copied == before) break;
    if (!Sleep(settled ? 100 * kMillisecond : kDrainSettlesNs)) break;
  }
  if (Cancelled(task)) return {};
  return Fail(Code::kNoSpace,
              fmt::format("{} objects found no room elsewhere{} and are still here; the owner "
                          "stays draining: add memory elsewhere and drain again, or cancel this "
                          "task",
                          task.stat.left, disks ? kOrUnread : ""));
}

Status Tasks::StillDrains(const wire::OwnerStat& from) const {
  // A restarted owner has the same address. It has another number if it has joined anew, and with
  // new memory under its old number it is not draining: either way it takes objects.
  for (const wire::OwnerStat& owner : cluster_.Owners()) {
    if (owner.address != from.address || !owner.live) continue;
    if (owner.number == from.number && owner.draining) continue;
    return Fail(Code::kUnavailable,
                fmt::format("the owner at {} was started again meanwhile and takes objects again; "
                            "drain it once more to stop it",
                            from.address));
  }
  return {};
}

bool Tasks::HasDisk(const wire::OwnerStat& owner) const {
  return std::ranges::any_of(cluster_.master().control().Describe(), [&](const auto& member) {
    return member.number == owner.number && member.disk;
  });
}

Status Tasks::Repair(Task& task) {
  std::uint64_t left = 0;
  Status all;
  for (const wire::OwnerStat& owner : cluster_.Owners()) {
    if (!owner.live || Cancelled(task)) continue;
    // Other errors are this owner's, and do not keep the others' objects from their repair. Unless
    // the owner has ended, the repair has failed all the same: one that began by itself begins
    // again.
    const auto walked = Walk(task, owner);
    if (walked) {
      left += walked->left;
    } else if (walked.error().code == Code::kInProgress) {
      return std::unexpected(walked.error());
    } else if (Live(owner.address)) {
      all = Fail(walked.error().code, fmt::format("the objects of {} were not looked at: {}",
                                                  owner.address, walked.error().detail));
    }
  }
  if (left > 0) {
    const MutexLock lock(mutex_);
    task.stat.left = left;
    task.stat.message = "some objects have fewer replicas than they were stored with";
  }
  return all;
}

rpc::TcpChannel& Tasks::ChannelTo(const std::string& address) {
  auto& channel = channels_[address];
  if (channel == nullptr) {
    channel = std::make_unique<rpc::TcpChannel>(*rpc::ParseAddress(address, 0),
                                                cluster_.AccessTo(address));
  }
  return *channel;
}

Result<std::string> Tasks::Call(const std::string& address, wire::Method method,
                                const std::string& body, std::int64_t deadline_ns) {
  InterruptBy interrupt(ends_);
  return ChannelTo(address).Call(method, wire::AsBytes(body), deadline_ns);
}

Result<Tasks::Walked> Tasks::Walk(Task& task, const wire::OwnerStat& from) {
  KVCOVE_TRY(rpc::ParseAddress(from.address, 0));
  const bool repair = task.stat.request.kind == TaskKind::kRepair;
  const std::vector<SlotId>& named = task.stat.request.slots;
  const std::set<SlotId> slots(named.begin(), named.end());
  // The owner looks at all that it has, its disks' summaries, too, whatever slot is asked for: so
  // one walk covers any number of slots.
  wire::InventoryRequest request{
      .at_most = kPage,
      .slot = named.size() == 1 ? std::optional(named.front()) : std::nullopt,
      .prefix = task.stat.request.prefix,
      .replicated_only = repair,
      .disks = !repair};
  Walked walked;
  while (request.cursor != wire::kInventoryDone && !Cancelled(task)) {
    KVCOVE_ASSIGN(const std::string reply,
                  Call(from.address, wire::Method::kInventory, wire::Encode(request),
                       clock_.NowNs() + 5 * kSecond));
    KVCOVE_ASSIGN(wire::InventoryReply page, wire::DecodeInventoryReply(wire::AsBytes(reply)));
    std::erase_if(page.objects, [&](const wire::HeldObject& object) {
      if (!slots.empty() && !slots.contains(object.slot)) return true;
      // The prefix of one key also matches longer keys.
      return task.stat.request.one_key && object.hash != DirectoryHash(object.slot, request.prefix);
    });
    {
      const MutexLock lock(mutex_);
      task.stat.looked_at += page.objects.size();
    }
    walked.disks = page.disks;
    // An owner of an earlier version lists the objects on its disk, but cannot copy them.
    if (!page.disks) {
      std::erase_if(page.objects, [](const auto& object) { return object.tier == Tier::kDisk; });
    }
    KVCOVE_ASSIGN(std::vector<Move> moves, Wanted(task, from, page.objects));
    walked.wanted += moves.size();
    walked.left += MoveAll(task, from, std::move(moves));
    request.cursor = page.cursor;
    request.within = page.within;
    request.since = page.since;
  }
  return walked;
}

// Waits for a shard that does not answer: it is lost when its lease ends, and owners then list its
// keys again. Until they have, a repair would take replicas for lost that are only not listed yet.
Result<std::vector<std::vector<wire::OwnerNumber>>> Tasks::HoldersOf(
    bool repair, const std::vector<wire::HeldObject>& page) {
  std::vector<ShardCalls::Key> asked;
  for (const wire::HeldObject& object : page) asked.emplace_back(object.slot, object.hash);
  const std::int64_t until_ns = clock_.NowNs() + kDirectoryNs;
  std::string why;
  do {
    const bool warming = repair && cluster_.master().control().Warming();
    ShardCalls::Found found = cluster_.Find(asked, clock_.NowNs() + kSecond);
    why = warming ? "owners are still listing their objects" : found.away;
    if (why.empty()) {
      std::vector<std::vector<wire::OwnerNumber>> holders(page.size());
      for (std::size_t i = 0; i < page.size(); ++i) {
        for (const auto& [owner, tier] : found.keys[i].holders) holders[i].push_back(owner);
      }
      return holders;
    }
  } while (clock_.NowNs() < until_ns && Sleep(100 * kMillisecond));
  return Fail(Code::kInProgress, fmt::format("the owners of these objects are not known: {}", why));
}

Result<std::vector<Tasks::Move>> Tasks::Wanted(const Task& task, const wire::OwnerStat& from,
                                               const std::vector<wire::HeldObject>& page) {
  const bool repair = task.stat.request.kind == TaskKind::kRepair;
  KVCOVE_ASSIGN(const auto holders, HoldersOf(repair, page));
  std::set<wire::OwnerNumber> takes;
  wire::OwnerNumber to = wire::kNoOwner;
  for (const wire::OwnerStat& owner : cluster_.Owners()) {
    if (Takes(owner)) takes.insert(owner.number);
    if (owner.address == task.stat.request.to) to = owner.number;
  }
  std::vector<Move> moves;
  for (std::size_t i = 0; i < page.size(); ++i) {
    const auto elsewhere = std::ranges::count_if(holders[i], [&](wire::OwnerNumber holder) {
      return holder != from.number && takes.contains(holder);
    });
    bool wanted = false;
    switch (task.stat.request.kind) {
      case TaskKind::kDrain:
        wanted = elsewhere == 0;
        break;
      case TaskKind::kMove:
        // Also if the target has the object already: the source then drops its own.
        wanted = true;
        break;
      case TaskKind::kCopy:
        wanted = to == wire::kNoOwner || std::ranges::find(holders[i], to) == holders[i].end();
        break;
      case TaskKind::kRepair: {
        // All holders are walked; the one with the lowest number makes the copy, so it is made
        // once.
        const bool mine = !holders[i].empty() && std::ranges::min(holders[i]) == from.number;
        const std::size_t live = elsewhere + (takes.contains(from.number) ? 1 : 0);
        wanted = mine && live < page[i].copies && takes.size() > live;
        break;
      }
    }
    if (wanted) moves.push_back({.object = page[i], .holders = holders[i]});
  }
  return moves;
}

const wire::OwnerStat* Tasks::TargetFor(const Task& task, const wire::OwnerStat& from,
                                        const Move& move,
                                        std::vector<wire::OwnerStat>& owners) const {
  // Hosts with another replica: a second one there would be lost together with it.
  std::set<std::string> hosts;
  for (const wire::OwnerStat& owner : owners) {
    if (std::ranges::find(move.holders, owner.number) != move.holders.end() &&
        (owner.number != from.number || task.stat.request.kind == TaskKind::kRepair)) {
      hosts.insert(owner.host);
    }
  }
  wire::OwnerStat* best = nullptr;
  const auto rank = [&](const wire::OwnerStat& owner) {
    return std::pair(!hosts.contains(owner.host), owner.free_bytes);
  };
  for (wire::OwnerStat& owner : owners) {
    const bool named = !task.stat.request.to.empty();
    const bool has = std::ranges::find(move.holders, owner.number) != move.holders.end();
    const bool may_have = named && task.stat.request.kind == TaskKind::kMove;
    if (!Takes(owner) || owner.number == from.number ||
        (named && owner.address != task.stat.request.to) || (has && !may_have) ||
        (!owner.tenant.empty() && owner.tenant != from.tenant) ||
        (!has && owner.free_bytes < move.object.size_bytes)) {
      continue;
    }
    if (best == nullptr || rank(owner) > rank(*best)) best = &owner;
  }
  // So that a batch does not send all of its objects to the owner with most room.
  if (best != nullptr)
    best->free_bytes -= std::min<std::uint64_t>(best->free_bytes, move.object.size_bytes);
  return best;
}

std::uint64_t Tasks::MoveAll(Task& task, const wire::OwnerStat& from, std::vector<Move> moves) {
  std::vector<wire::OwnerStat> owners = cluster_.Owners();
  for (int attempt = 0; attempt < kMaxTargets && !moves.empty() && !Cancelled(task); ++attempt) {
    std::map<std::string, std::vector<Move>> by_target;
    std::vector<Move> homeless;
    for (Move& move : moves) {
      const wire::OwnerStat* target = TargetFor(task, from, move, owners);
      (target == nullptr ? homeless : by_target[target->address]).push_back(std::move(move));
    }
    moves = std::move(homeless);
    for (auto& [address, part] : by_target) {
      bool refused = false;
      for (std::size_t at = 0; at < part.size() && !Cancelled(task);) {
        std::size_t end = at;
        for (std::uint64_t bytes = 0; end < part.size() && bytes < kCopyBytes; ++end) {
          bytes += part[end].object.size_bytes;
        }
        std::ranges::move(
            MoveTo(task, from, address, std::span(part).subspan(at, end - at), refused),
            std::back_inserter(moves));
        at = end;
      }
      // The next attempt must find another target.
      for (wire::OwnerStat& owner : owners) {
        if (refused && owner.address == address) owner.free_bytes = 0;
      }
    }
  }
  return moves.size();
}

std::vector<Tasks::Move> Tasks::MoveTo(Task& task, const wire::OwnerStat& from,
                                       const std::string& address, std::span<Move> part,
                                       bool& refused) {
  wire::CopyRequest request{.to = address,
                            .move = task.stat.request.kind == TaskKind::kMove ||
                                    task.stat.request.kind == TaskKind::kDrain,
                            .items = {},
                            .budget_ms = kCopyBudgetMs};
  for (const Move& move : part) {
    const wire::HeldObject& object = move.object;
    request.items.push_back(
        object.tier == Tier::kDisk
            ? wire::CopyRequest::Item{.key = object.key,
                                      .slot = object.slot,
                                      .generation = object.generation,
                                      .size_bytes = object.size_bytes}
            : wire::CopyRequest::Item{.id = object.id, .version = object.version});
  }
  auto reply = Call(from.address, wire::Method::kCopy, wire::Encode(request),
                    clock_.NowNs() + (kCopyBudgetMs + 5000) * kMillisecond);
  const auto codes = reply ? wire::DecodeCodes(wire::AsBytes(*reply), part.size())
                           : Result<std::vector<Code>>(std::unexpected(reply.error()));
  std::vector<Move> again;
  std::uint64_t bytes = 0;
  std::uint64_t copied = 0;
  for (std::size_t i = 0; i < part.size(); ++i) {
    const Code code = codes ? (*codes)[i] : codes.error().code;
    if (code == Code::kOk) {
      ++copied;
      bytes += part[i].object.size_bytes;
    } else if (code == Code::kStale || code == Code::kInProgress) {
      // A removal, a reset or another put came in between, or the source's disk was busy: the next
      // attempt, at any target, shows the outcome.
      again.push_back(std::move(part[i]));
    } else if (code != Code::kExists && code != Code::kMiss) {
      // kExists: the target has the object. kMiss: the source has lost it since. Both are done.
      refused = true;
      again.push_back(std::move(part[i]));
    }
  }
  {
    const MutexLock lock(mutex_);
    task.stat.copied += copied;
    task.stat.copied_bytes += bytes;
    copied_ += copied;
    copied_bytes_ += bytes;
  }
  Pay(bytes);
  return again;
}

// After the copy, not before: its size is known then, and a copy that failed costs nothing.
void Tasks::Pay(std::uint64_t bytes) {
  const double seconds = static_cast<double>(bytes) /
                         static_cast<double>(std::max<std::uint64_t>(options_.bytes_per_second, 1));
  (void)Sleep(static_cast<std::int64_t>(seconds * 1e9));
}

}  // namespace kvcove::master
