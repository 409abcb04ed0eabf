// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/owner.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "kvcove/base/log.h"
#include "kvcove/base/memory.h"
#include "kvcove/base/random.h"
#include "kvcove/base/size.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace kvcove::owner {
namespace {

constexpr std::int64_t kJanitorPeriodNs = 5 * kMillisecond;
constexpr std::uint64_t kPopulateChunk = 32 * kMiB;
constexpr std::uint64_t kTrimOutbox = 64;
constexpr std::size_t kSlice = 256;  // keys or objects under one hold of the lock
constexpr std::int64_t kTurnNs = 50 * kMicrosecond;
// How often a put that waits for the master looks whether that is still there.
constexpr std::int64_t kMasterLookNs = 50 * kMillisecond;

// Between two slices of a walk. A mutex that is taken again at once is never seen to be free by the
// threads that wait for it: they need the time of a wake-up.
void LetOthersIn() { std::this_thread::sleep_for(std::chrono::nanoseconds(kTurnNs)); }

std::vector<PutResult> Full(std::size_t count) {
  return std::vector<PutResult>(count, PutResult{.code = Code::kNoSpace, .extents = {}});
}

}  // namespace

Result<std::unique_ptr<Owner>> Owner::Open(const OwnerOptions& given, const Clock& clock) {
  OwnerOptions options = given;
  options.memory_bytes = options.memory_bytes / segment::kGranule * segment::kGranule;
  if (options.memory_bytes < kMiB || options.memory_bytes > segment::kMaxPayloadBytes) {
    return Fail(Code::kInvalid,
                fmt::format("a memory budget of {}; give between 1MiB and {}",
                            FormatSize(given.memory_bytes), FormatSize(segment::kMaxPayloadBytes)));
  }
  if (const std::uint64_t available = AvailableMemory(); options.memory_bytes > available) {
    return Fail(Code::kInvalid,
                fmt::format("a memory budget of {}, but this host can give {} now; ask for less",
                            FormatSize(options.memory_bytes), FormatSize(available)));
  }
  if (options.max_objects == 0) {
    options.max_objects = std::clamp<std::uint64_t>(options.memory_bytes / 512, 1024, 1ULL << 27);
  }
  std::unique_ptr<Owner> owner(new Owner(options, clock));
  KVCOVE_TRY(owner->MakeFiles());
  const CoreOptions core{.payload_bytes = options.memory_bytes,
                         .max_objects = options.max_objects,
                         .policy = options.policy,
                         .quotas = options.quotas,
                         .clear_foreign = options.tenants,
                         .listed = options.cluster};
  const MutexLock lock(owner->mutex_);
  KVCOVE_ASSIGN(owner->core_, Core::Open(core, owner->header_, owner->payload_.data(), clock));
  // The first renewal may be sent before the janitor has made a report. One of zeros would tell the
  // master that this owner is full.
  const MutexLock report_lock(owner->report_mutex_);
  owner->report_ = owner->core_->Report();
  return owner;
}

Status Owner::MakeFiles() {
  const segment::HeaderSizes sizes{.max_objects = options_.max_objects,
                                   .payload_bytes = options_.memory_bytes};
  const std::uint64_t header_bytes = segment::HeaderFileBytes(sizes);
  KVCOVE_ASSIGN(header_fd_, CreateMemoryFile("kvcove-header", header_bytes));
  KVCOVE_ASSIGN(header_map_,
                Mapping::Map(header_fd_.get(), header_bytes, Mapping::Access::kReadWrite));
  segment::FormatHeader(header_map_.data(), sizes, RandomId(), RandomU64());
  // From here on nobody else can get a writable mapping of the header.
  KVCOVE_TRY(SealFutureWrites(header_fd_.get()));
  KVCOVE_ASSIGN(header_, segment::HeaderView::Open(header_map_.data(), header_map_.size()));
  KVCOVE_ASSIGN(payload_fd_, CreateMemoryFile("kvcove-payload", options_.memory_bytes));
  KVCOVE_ASSIGN(payload_, Mapping::Map(payload_fd_.get(), options_.memory_bytes,
                                       Mapping::Access::kReadWrite));
  return {};
}

Owner::~Owner() { Stop(); }

void Owner::Start() {
  {
    const MutexLock lock(stop_mutex_);
    stopping_ = false;
  }
  {
    const MutexLock lock(mutex_);
    if (!options_.cluster) core_->RenewLease(clock_.NowNs() + options_.lease_ns);
  }
  if (!options_.cluster) lease_ = StartThread("kvcove-lease", [this] { RunLease(); });
  janitor_ = StartThread("kvcove-janitor", [this] { RunJanitor(); });
  if (options_.populate) populate_ = StartThread("kvcove-pages", [this] { RunPopulate(); });
}

void Owner::Stop() {
  {
    const MutexLock lock(stop_mutex_);
    stopping_ = true;
    stop_changed_.NotifyAll();
  }
  for (std::thread* thread : {&janitor_, &lease_, &populate_}) {
    if (thread->joinable()) thread->join();
  }
  const MutexLock lock(mutex_);
  if (core_ != nullptr) core_->RenewLease(0);
}

// Liveness has its own thread: an expensive request never costs a lease.
void Owner::RunLease() {
  const MutexLock lock(stop_mutex_);
  while (!stopping_) {
    // One atomic store into the header; the core's lock is not needed and not waited for.
    header_.header().lease_deadline_ns.store(clock_.NowNs() + options_.lease_ns,
                                             std::memory_order_release);
    stop_changed_.WaitFor(stop_mutex_, std::chrono::nanoseconds(options_.lease_renewal_ns));
  }
}

// While the master is away puts go on, and older ones that wait for it give way. Without a trim the
// outbox would grow with each put. A trim looks at all of it, so it comes after as many have gone
// as make up for that.
void Owner::TrimOutbox(std::uint64_t& gave_way) {
  {
    const MutexLock lock(outbox_mutex_);
    if (gave_way <= kTrimOutbox + (outbox_.size() / 2)) return;
  }
  gave_way = 0;
  std::vector<Listing> wait;
  std::vector<Listing> over;
  for (Listing& listing : TakeListings(~std::size_t{0})) {
    const MutexLock lock(mutex_);
    const bool waits = std::ranges::any_of(
        listing.pending,
        [&](const Pending& pending) KVCOVE_REQUIRES(mutex_) { return core_->Waits(pending); });
    (waits ? wait : over).push_back(std::move(listing));
  }
  ReturnListings(std::move(wait));
  for (const Listing& listing : over) {
    listing.done(std::vector<Code>(listing.pending.size(), Code::kNoSpace));
  }
}

void Owner::RunJanitor() {
  std::uint64_t gave_way = 0;
  while (true) {
    bool more = false;
    wire::RenewRequest report;
    {
      const MutexLock lock(mutex_);
      more = core_->Tick();
      report = core_->Report();
      gave_way += core_->TakeGaveWay();
    }
    TrimOutbox(gave_way);
    {
      const MutexLock lock(report_mutex_);
      report_ = report;
    }
    const MutexLock lock(stop_mutex_);
    if (stopping_) return;
    stop_changed_.WaitFor(stop_mutex_, std::chrono::nanoseconds(more ? kTurnNs : kJanitorPeriodNs));
    if (stopping_) return;
  }
}

void Owner::RunPopulate() {
  std::uint64_t done = 0;
  while (done < options_.memory_bytes) {
    const std::uint64_t size = std::min(kPopulateChunk, options_.memory_bytes - done);
    if (madvise(payload_.data() + done, size, MADV_POPULATE_WRITE) != 0) {
      LogWarn("populating the segment stopped at {}: the first puts will meet page faults",
              FormatSize(done));
      break;
    }
    done += size;
    {
      const MutexLock lock(mutex_);
      core_->AddPayloadUpTo(done / segment::kGranule);
    }
    const MutexLock lock(stop_mutex_);
    if (stopping_) return;
  }
}

Result<Owner::Grant> Owner::AddSession(std::int32_t pid) {
  Grant grant;
  KVCOVE_ASSIGN(grant.page, CreateMemoryFile("kvcove-session", segment::kSessionFileBytes));
  KVCOVE_ASSIGN(Mapping page, Mapping::Map(grant.page.get(), segment::kSessionFileBytes,
                                           Mapping::Access::kReadWrite));
  segment::FormatSessionPage(page.data());
  grant.mapped = reinterpret_cast<segment::SessionPage*>(page.data());
  const MutexLock lock(mutex_);
  grant.number = core_->AddSession(grant.mapped, pid, segment::StagingOf(page.data(), page.size()));
  pages_.emplace(grant.number, std::move(page));
  return grant;
}

SessionNumber Owner::AddRemoteSession() {
  const MutexLock lock(mutex_);
  return core_->AddSession(nullptr, getpid());
}

void Owner::EndSession(SessionNumber number) {
  const MutexLock lock(mutex_);
  core_->EndSession(number);
  pages_.erase(number);
}

void Owner::Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) {
  for (const SlotUpdate& update : updates) {
    slot_tenants_[update.slot].store(TenantTag(TenantOf(update.name)), std::memory_order_release);
  }
  const MutexLock lock(mutex_);
  core_->SetSlots(incarnation, updates);
  published_.NotifyAll();
}

// ---- puts

void Owner::Enqueue(std::vector<Pending> pending, std::function<void(std::span<const Code>)> done) {
  const MutexLock lock(outbox_mutex_);
  outbox_.push_back({.pending = std::move(pending), .done = std::move(done)});
  outbox_changed_.NotifyOne();
}

std::vector<Code> Owner::AwaitListed(std::vector<Pending> pending, std::int64_t deadline_ns) {
  struct Wait {
    Mutex mutex;
    CondVar changed;
    bool done KVCOVE_GUARDED_BY(mutex) = false;
    std::vector<Code> codes KVCOVE_GUARDED_BY(mutex);
  };
  const auto wait = std::make_shared<Wait>();
  const std::size_t count = pending.size();
  Enqueue(std::move(pending), [wait](std::span<const Code> codes) {
    const MutexLock lock(wait->mutex);
    wait->codes.assign(codes.begin(), codes.end());
    wait->done = true;
    wait->changed.NotifyAll();
  });
  const MutexLock lock(wait->mutex);
  while (!wait->done) {
    const std::int64_t left = deadline_ns - clock_.NowNs();
    if (left <= 0 || !master_reachable_) return std::vector<Code>(count, Code::kNotListed);
    wait->changed.WaitFor(wait->mutex, std::chrono::nanoseconds(std::min(left, kMasterLookNs)));
  }
  return wait->codes;
}

bool Owner::Awaits(const Token& token) {
  const MutexLock lock(mutex_);
  return core_->Awaits(token);
}

void Owner::AwaitGeneration(const Token& token, std::int64_t deadline_ns) {
  while (core_->Awaits(token) && master_reachable_) {
    const std::int64_t left = deadline_ns - clock_.NowNs();
    if (left <= 0) return;
    // No longer than this, so that a master that goes away meanwhile is noticed.
    published_.WaitFor(mutex_, std::chrono::nanoseconds(std::min(left, kMasterLookNs)));
  }
}

std::vector<PutResult> Owner::Reserve(SessionNumber session, const Token& token,
                                      std::span<const PutItem> items, bool evict) {
  if (draining_) return Full(items.size());
  const MutexLock lock(mutex_);
  return core_->Put(session, token, items, evict);
}

std::vector<PutResult> Owner::Put(SessionNumber session, const Token& token,
                                  std::span<const PutItem> items, std::int64_t deadline_ns) {
  if (draining_) return Full(items.size());
  std::vector<PutResult> results;
  std::vector<Pending> pending;
  {
    const MutexLock lock(mutex_);
    AwaitGeneration(token, deadline_ns);
    results = core_->Put(session, token, items);
    if (options_.cluster) pending = core_->TakePending();
  }
  if (pending.empty()) return results;
  std::unordered_map<std::uint64_t, std::size_t> where;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].reservation != 0) where.emplace(results[i].reservation, i);
  }
  std::vector<std::size_t> order;
  for (const Pending& one : pending) order.push_back(where.at(one.reservation));
  const std::vector<Code> codes = AwaitListed(std::move(pending), deadline_ns);
  for (std::size_t k = 0; k < codes.size(); ++k) {
    results[order[k]] = {.code = codes[k], .extents = {}};
  }
  return results;
}

Owner::Committed Owner::Commit(SessionNumber session, std::span<const FinishItem> items) {
  Committed committed;
  {
    const MutexLock lock(mutex_);
    committed.codes = core_->Finish(session, items);
    if (options_.cluster) committed.pending = core_->TakePending();
  }
  // Both are in the order of the items.
  for (std::size_t i = 0; i < items.size() && committed.order.size() < committed.pending.size();
       ++i) {
    if (items[i].reservation == committed.pending[committed.order.size()].reservation) {
      committed.order.push_back(i);
    }
  }
  return committed;
}

std::vector<Code> Owner::Finish(SessionNumber session, std::span<const FinishItem> items,
                                std::int64_t deadline_ns) {
  auto [codes, pending, order] = Commit(session, items);
  if (pending.empty()) return codes;
  const std::vector<Code> listed = AwaitListed(std::move(pending), deadline_ns);
  for (std::size_t k = 0; k < listed.size(); ++k) codes[order[k]] = listed[k];
  return codes;
}

void Owner::FinishThen(SessionNumber session, std::span<const FinishItem> items,
                       std::function<void(std::vector<Code>)> done) {
  Committed committed = Commit(session, items);
  if (committed.pending.empty()) return done(std::move(committed.codes));
  Enqueue(std::move(committed.pending),
          [codes = std::move(committed.codes), order = std::move(committed.order),
           done = std::move(done)](std::span<const Code> listed) mutable {
            for (std::size_t k = 0; k < listed.size(); ++k) codes[order[k]] = listed[k];
            done(std::move(codes));
          });
}

std::vector<Loan> Owner::Lend(const Token& token, std::span<const std::string_view> keys) {
  const MutexLock lock(mutex_);
  return core_->Lend(token, keys);
}

std::vector<std::optional<CopyLoan>> Owner::LendForCopy(
    std::span<const wire::CopyRequest::Item> items) {
  std::vector<std::optional<CopyLoan>> loans;
  const MutexLock lock(mutex_);
  for (const auto& item : items) loans.push_back(core_->LendForCopy(item.id, item.version));
  return loans;
}

void Owner::Return(std::span<const Loan> loans) {
  const MutexLock lock(mutex_);
  core_->Return(loans);
}

void Owner::SetChecksum(const Loan& loan, std::uint64_t checksum) {
  const MutexLock lock(mutex_);
  core_->SetChecksum(loan, checksum);
}

// ---- for the link to the master

void Owner::SetLease(std::int64_t deadline_ns) {
  header_.header().lease_deadline_ns.store(deadline_ns, std::memory_order_release);
}

std::int64_t Owner::LeaseUntilNs() const {
  return header_.header().lease_deadline_ns.load(std::memory_order_acquire);
}

bool Owner::WaitOutbox(std::int64_t wait_ns) {
  const MutexLock lock(outbox_mutex_);
  if (outbox_.empty() && !outbox_woken_) {
    outbox_changed_.WaitFor(outbox_mutex_, std::chrono::nanoseconds(wait_ns));
  }
  outbox_woken_ = false;
  return !outbox_.empty();
}

void Owner::WakeOutbox() {
  const MutexLock lock(outbox_mutex_);
  outbox_woken_ = true;
  outbox_changed_.NotifyAll();
}

std::vector<Listing> Owner::TakeListings(std::size_t at_most_items) {
  std::vector<Listing> listings;
  std::size_t items = 0;
  const MutexLock lock(outbox_mutex_);
  while (!outbox_.empty() && items < at_most_items) {
    items += outbox_.front().pending.size();
    listings.push_back(std::move(outbox_.front()));
    outbox_.pop_front();
  }
  return listings;
}

void Owner::ReturnListings(std::vector<Listing> listings) {
  const MutexLock lock(outbox_mutex_);
  for (auto at = listings.rbegin(); at != listings.rend(); ++at) {
    outbox_.push_front(std::move(*at));
  }
}

void Owner::CompleteListing(Listing listing, std::span<const Code> codes) {
  std::vector<Code> outcomes;
  {
    for (std::size_t begin = 0; begin < codes.size(); begin += kSlice) {
      const MutexLock lock(mutex_);
      for (std::size_t i = begin; i < std::min(begin + kSlice, codes.size()); ++i) {
        outcomes.push_back(core_->FinishListing(listing.pending[i], codes[i]));
      }
    }
  }
  listing.done(outcomes);
}

std::vector<wire::ListItem> Owner::TakeGone(std::size_t at_most) {
  const MutexLock lock(mutex_);
  return core_->TakeGone(at_most);
}

bool Owner::TakeGoneOverflow() {
  const MutexLock lock(mutex_);
  return core_->TakeGoneOverflow();
}

std::vector<InventoryItem> Owner::Inventory(ObjectId& cursor, std::size_t at_most) {
  std::vector<InventoryItem> items;
  while (cursor != Core::kWalkDone && items.size() < at_most) {
    std::vector<InventoryItem> slice;
    {
      const MutexLock lock(mutex_);
      slice = core_->Inventory(cursor, at_most - items.size());
    }
    items.insert(items.end(), slice.begin(), slice.end());
    if (cursor != Core::kWalkDone && items.size() < at_most) LetOthersIn();
  }
  return items;
}

void Owner::DropObjects(std::span<const InventoryItem> items) {
  for (std::size_t begin = 0; begin < items.size(); begin += kSlice) {
    const MutexLock lock(mutex_);
    for (const InventoryItem& item : items.subspan(begin, std::min(kSlice, items.size() - begin))) {
      core_->DropObject(item.id, item.version);
    }
  }
}

void Owner::DropObjects(std::span<const wire::CopyRequest::Item> items) {
  const MutexLock lock(mutex_);
  for (const auto& item : items) core_->DropObject(item.id, item.version);
}

wire::InventoryReply Owner::Page(const wire::InventoryRequest& request) {
  const MutexLock lock(mutex_);
  return core_->Page(request);
}

void Owner::SetHidden(const std::vector<SlotId>& slots) {
  const MutexLock lock(mutex_);
  core_->SetHidden(slots);
}

wire::RenewRequest Owner::Report() {
  const MutexLock lock(report_mutex_);
  return report_;
}

void Owner::SetApplied(std::uint64_t number) {
  const MutexLock lock(mutex_);
  core_->SetApplied(number);
  applied_ = number;
}

void Owner::DropSlot(SlotId slot) {
  Core::Walk walk;
  while (!walk.done) {
    {
      const MutexLock lock(mutex_);
      core_->DropSlot(slot, walk);
    }
    LetOthersIn();
  }
}

std::uint64_t Owner::ApplyRemoval(const wire::Removal& removal) {
  std::uint64_t matched = 0;
  for (std::size_t begin = 0; begin < removal.keys.size(); begin += kSlice) {
    const MutexLock lock(mutex_);
    if (!core_->Means(removal.slot, removal.generation)) return 0;
    const std::size_t end = std::min(begin + kSlice, removal.keys.size());
    for (std::size_t i = begin; i < end; ++i) (void)core_->Remove(removal.slot, removal.keys[i]);
  }
  Core::Walk walk{.done = removal.pattern.empty()};
  while (!walk.done) {
    {
      const MutexLock lock(mutex_);
      if (!core_->Means(removal.slot, removal.generation)) break;
      matched += core_->RemoveMatching(removal.slot, removal.pattern, walk);
    }
    LetOthersIn();
  }
  return matched;
}

std::vector<Code> Owner::Remove(const Token& token, std::span<const std::string_view> keys) {
  std::vector<Code> codes;
  codes.reserve(keys.size());
  for (std::size_t begin = 0; begin < keys.size(); begin += kSlice) {
    const MutexLock lock(mutex_);
    const Code current = core_->CheckToken(token);
    for (const std::string_view key : keys.subspan(begin, std::min(kSlice, keys.size() - begin))) {
      codes.push_back(current != Code::kOk ? current : core_->Remove(token.slot, key));
    }
  }
  return codes;
}

Result<std::uint64_t> Owner::RemoveMatching(const Token& token, std::string_view pattern,
                                            std::int64_t deadline_ns) {
  KVCOVE_TRY(CheckPattern(pattern));
  std::uint64_t removed = 0;
  Core::Walk walk;
  while (!walk.done) {
    if (clock_.NowNs() >= deadline_ns) {
      return Fail(Code::kTimeout, fmt::format("{} objects were removed, others may be left; "
                                              "repeat the call",
                                              removed));
    }
    {
      const MutexLock lock(mutex_);
      if (core_->CheckToken(token) != Code::kOk) {
        return Fail(Code::kStale, "the generation is not the current one; register again");
      }
      removed += core_->RemoveMatching(token.slot, pattern, walk);
    }
    LetOthersIn();
  }
  return removed;
}

std::vector<Code> Owner::Pin(const Token& token, std::span<const std::string_view> keys,
                             const Pinning& pinning, std::int64_t deadline_ns) {
  std::vector<Code> codes;
  codes.reserve(keys.size());
  for (std::size_t begin = 0; begin < keys.size(); begin += kSlice) {
    if (begin > 0 && clock_.NowNs() >= deadline_ns) break;
    const MutexLock lock(mutex_);
    const Code current = core_->CheckToken(token);
    for (const std::string_view key : keys.subspan(begin, std::min(kSlice, keys.size() - begin))) {
      if (current != Code::kOk) {
        codes.push_back(current);
      } else {
        codes.push_back(pinning.kind
                            ? core_->Pin(token.slot, key, *pinning.kind, pinning.duration_ns)
                            : core_->Unpin(token.slot, key));
      }
    }
  }
  codes.resize(keys.size(), Code::kTimeout);
  return codes;
}

Result<std::vector<std::optional<ObjectStat>>> Owner::StatObjects(
    const Token& token, std::span<const std::string_view> keys, std::int64_t deadline_ns) {
  std::vector<std::optional<ObjectStat>> stats;
  stats.reserve(keys.size());
  for (std::size_t begin = 0; begin < keys.size(); begin += kSlice) {
    if (begin > 0 && clock_.NowNs() >= deadline_ns) {
      return Fail(Code::kTimeout, fmt::format("{} of {} keys were looked at; ask for fewer at once",
                                              begin, keys.size()));
    }
    const MutexLock lock(mutex_);
    if (begin == 0) core_->DrainEvents();
    const bool current = core_->CheckToken(token) == Code::kOk;
    for (const std::string_view key : keys.subspan(begin, std::min(kSlice, keys.size() - begin))) {
      stats.push_back(current ? core_->StatObject(token.slot, key) : std::nullopt);
    }
  }
  return stats;
}

PoolStat Owner::Stat() {
  PoolStat stat;
  Core::StatWalk walk;
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (!core_->StatSome(walk, stat)) return stat;
    }
    LetOthersIn();
  }
}

bool Owner::Populated() {
  const MutexLock lock(mutex_);
  return core_->added_granules() * segment::kGranule >= options_.memory_bytes;
}

}  // namespace kvcove::owner
