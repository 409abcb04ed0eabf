// SPDX-License-Identifier: Apache-2.0
#include "kvcove/server/kv_events.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>
#include <vector>

#include "kvcove/base/glob.h"
#include "kvcove/base/hash.h"
#include "kvcove/base/log.h"

namespace kvcove::server {
namespace {

constexpr std::uint32_t kPageObjects = 512;
constexpr std::int64_t kPageNs = 200 * kMillisecond;
// What one call reads: 16,384 objects in memory, and no more once this time is over.
constexpr int kPagesACall = 32;
constexpr std::int64_t kCallNs = 20 * kMillisecond;
// Routers that a process before this one had come back so long after the start, behind its first
// events. Without those they would keep the blocks of that process; so it begins again for them, so
// often at most.
constexpr std::int64_t kReturnNs = 10 * kSecond;
constexpr std::int64_t kBeginAgainNs = kSecond;
// Most keys that may change while pages are read; about 40 bytes each.
constexpr std::size_t kMostChanged = 1 << 20;
// A walk that a disk has stopped is continued after this time.
constexpr std::int64_t kWalkAgainNs = kSecond;
// A batch may have 1,024 hashes of 35 bytes and the last event of the one before.
constexpr std::size_t kBatchHashes = kvevents::Event::kMostHashes;

std::uint64_t KeyNumber(SlotId slot, std::string_view key) { return Hash64(key, slot); }

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string EndpointOf(const rpc::Address& address) { return "tcp://" + address.ToString(); }

}  // namespace

Result<std::unique_ptr<KvEvents>> KvEvents::Open(owner::Owner& owner,
                                                 const KvEventsOptions& options, Post walk,
                                                 const Clock& clock) {
  KVCOVE_ASSIGN(auto publisher,
                kvevents::Publisher::Open(
                    {.events = EndpointOf(options.events),
                     .replay = options.replay ? EndpointOf(*options.replay) : std::string(),
                     .topic = options.topic},
                    clock));
  std::unique_ptr<KvEvents> events(
      new KvEvents(owner, options, std::move(walk), std::move(publisher), clock));
  KVCOVE_ASSIGN(events->thread_,
                StartThread("kvcove-events", [events = events.get()] { events->Run(); }));
  return events;
}

KvEvents::KvEvents(owner::Owner& owner, const KvEventsOptions& options, Post walk,
                   std::unique_ptr<kvevents::Publisher> publisher, const Clock& clock)
    : owner_(owner),
      options_(options),
      post_(std::move(walk)),
      clock_(clock),
      encoder_(options.form),
      publisher_(std::move(publisher)),
      catalogue_(options.most_blocks),
      untold_(kMaxSlots),
      opened_ns_(clock.NowNs()) {}

KvEvents::~KvEvents() {
  stopping_ = true;
  JoinIfStarted(thread_);
}

void KvEvents::Run() {
  while (!stopping_) {
    const std::int64_t until_ns = clock_.NowNs() + kRoundNs;
    Round();
    // Requests end a call of Serve, and must not make the rounds, which take the owner's lock,
    // more.
    do {
      const std::int64_t left_ms = (until_ns - clock_.NowNs()) / kMillisecond;
      publisher_->Serve(std::max<std::int64_t>(left_ms, 0), [this] { return Snapshot(); });
    } while (!stopping_ && clock_.NowNs() + kMillisecond < until_ns);
  }
}

void KvEvents::Round() {
  if (std::exchange(begin_anew_, false) || NewcomersMissedTheBeginning()) BeginAnew();
  Follow();
  FollowDisks();
  if (walk_.active) {
    if (walk_.asked != nullptr && walk_.asked->done.load(std::memory_order_acquire)) TakePages();
    if (walk_.active && walk_.asked == nullptr) AskForPages();
  }
  Flush();
}

bool KvEvents::NewcomersMissedTheBeginning() const {
  const std::int64_t now_ns = clock_.NowNs();
  return now_ns < opened_ns_ + kReturnNs + kBeginAgainNs && now_ns >= begun_ns_ + kBeginAgainNs &&
         publisher_->subscriptions() > begun_with_;
}

// Begins with what the slots are now. All values are read by a walk.
void KvEvents::BeginAnew() {
  catalogue_.Clear();
  untold_.assign(kMaxSlots, 0);
  begun_ns_ = clock_.NowNs();
  begun_with_ = publisher_->subscriptions();
  (void)owner_.TakeDiskChanges();
  owner_.TakeKeyChanges(changes_, /*all=*/true);
  for (const auto& [number, slot] : changes_.slots) {
    SetSlot(number, slot.generation, slot.shown(), slot.name);
  }
  BeginWalk();
}

void KvEvents::BeginWalk() {
  walk_ = {};
  walk_.active = true;
  walk_.next.at_most = kPageObjects;
  walk_.next.with_keys = true;
  walk_.next.disks = true;
}

void KvEvents::Follow() {
  owner_.TakeKeyChanges(changes_, /*all=*/false);
  if (changes_.whole) {
    counts_.lost.fetch_add(1, std::memory_order_relaxed);
    walk_ = {};
    begin_anew_ = true;  // in the next round
    return;
  }
  changes_.Each([this](const owner::KeyChanges::Change& change) {
    if (walk_.asked != nullptr && change.kind != owner::KeyChanges::Kind::kSlot) {
      if (walk_.changed.size() < kMostChanged) {
        walk_.changed.insert(KeyNumber(change.slot, change.text));
      } else {
        walk_.changed_much = true;
      }
    }
    Apply(change);
  });
}

void KvEvents::Apply(const owner::KeyChanges::Change& change) {
  using Kind = owner::KeyChanges::Kind;
  switch (change.kind) {
    case Kind::kSlot:
      return SetSlot(change.slot, change.generation, change.shown, change.text);
    case Kind::kStored:
      PutDisk(change.slot, change.text);  // a value that was promoted stays on its disk
      return catalogue_.PutMemory(change.slot, change.text);
    case Kind::kWithdrawn:
      // A disk has the tag of an evicted value before memory forgets it. One that loses it later
      // says so (FollowDisks).
      PutDisk(change.slot, change.text);
      return catalogue_.DropMemory(change.slot, change.text);
  }
}

void KvEvents::SetSlot(SlotId slot, Generation generation, bool shown, std::string_view name) {
  if (slot >= untold_.size()) return;
  const bool told =
      options_.namespaces == "*" || GlobMatches(options_.namespaces, NameWithinTenant(name));
  // A namespace that is not told takes no room from those that are.
  const Generation untold = std::exchange(untold_[slot], told ? 0 : generation);
  catalogue_.SetSlot(slot, told ? generation : 0, shown);
  // Behind a take-over the name comes later, if tenants share the owner: its values were passed
  // over.
  if (told && generation != 0 && generation == untold) BeginWalk();
}

void KvEvents::PutDisk(SlotId slot, std::string_view key) {
  const std::uint64_t tag = owner_.DiskTag(slot, catalogue_.GenerationOf(slot), key);
  if (tag != 0) catalogue_.PutDisk(slot, key, tag);
}

void KvEvents::FollowDisks() {
  const auto holds = [this](std::uint64_t tag) { return owner_.DiskHas(tag); };
  const owner::TierTags::Changes changes = owner_.TakeDiskChanges();
  // A key may have been written again since.
  for (const std::uint64_t tag : changes.removed) {
    if (!holds(tag)) catalogue_.DropDisk(tag);
  }
  if (!changes.others) return;
  catalogue_.VerifyDisks(holds);
  BeginWalk();  // a disk that is used again brings values
}

// The changes of before were taken in this round, so from here on each one counts as one that the
// pages may not have.
void KvEvents::AskForPages() {
  if (clock_.NowNs() < walk_.not_before_ns) return;
  auto pages = std::make_shared<Pages>();
  pages->next = walk_.next;
  walk_.changed.clear();
  walk_.changed_much = false;
  walk_.asked = pages;
  const bool posted = post_([pages, owner = &owner_, clock = &clock_] {
    ReadPages(*owner, *clock, *pages);
    pages->done.store(true, std::memory_order_release);
  });
  if (!posted) walk_.asked = nullptr;  // in the next round
}

void KvEvents::ReadPages(owner::Owner& owner, const Clock& clock, Pages& pages) {
  const std::int64_t until_ns = clock.NowNs() + kCallNs;
  for (int i = 0; i < kPagesACall && clock.NowNs() < until_ns; ++i) {
    if (i > 0) owner::Memory::LetOthersIn();
    auto page = owner.Page(pages.next, clock.NowNs() + kPageNs);
    pages.failed = !page;
    if (pages.failed) return;
    std::ranges::move(page->objects, std::back_inserter(pages.objects));
    pages.next.cursor = page->cursor;
    pages.next.within = page->within;
    pages.next.since = page->since;
    if (page->cursor == wire::kInventoryDone) return;
  }
}

// A key that has changed since the pages were asked for may be older or newer in them: its last
// change says how it is. This round has taken all changes of before their end.
void KvEvents::TakePages() {
  Follow();
  const std::shared_ptr<Pages> pages = std::exchange(walk_.asked, nullptr);
  if (pages == nullptr || walk_.changed_much) return;  // the walk begins anew, or this step
  for (const wire::HeldObject& object : pages->objects) {
    if (object.generation != catalogue_.GenerationOf(object.slot)) continue;
    if (walk_.changed.contains(KeyNumber(object.slot, object.key))) continue;
    if (object.tier == Tier::kMemory) catalogue_.PutMemory(object.slot, object.key);
    if (object.tier == Tier::kDisk || object.on_disk) PutDisk(object.slot, object.key);
  }
  walk_.next = pages->next;
  walk_.not_before_ns = pages->failed ? clock_.NowNs() + kWalkAgainNs : 0;
  walk_.active = pages->next.cursor != wire::kInventoryDone;
}

void KvEvents::Flush() {
  const std::vector<kvevents::Event> events = catalogue_.TakeEvents();
  counts_.blocks = catalogue_.blocks();
  counts_.left_out = catalogue_.left_out();
  counts_.foreign = catalogue_.foreign();
  for (std::size_t from = 0; from < events.size();) {
    std::size_t hashes = 0;
    std::size_t end = from;
    for (; end < events.size(); ++end) {
      hashes += events[end].hashes.size() + 1;
      if (end > from && hashes > kBatchHashes) break;
    }
    publisher_->Publish(Encode(std::span(events).subspan(from, end - from)));
    from = end;
  }
  for (const kvevents::Event& event : events) {
    const auto medium = static_cast<std::size_t>(event.medium);
    auto& count = event.kind == kvevents::Event::Kind::kStored    ? counts_.stored[medium]
                  : event.kind == kvevents::Event::Kind::kRemoved ? counts_.removed[medium]
                                                                  : counts_.cleared;
    count.fetch_add(std::max<std::size_t>(event.hashes.size(), 1), std::memory_order_relaxed);
  }
}

std::string KvEvents::Encode(std::span<const kvevents::Event> events) const {
  return encoder_.Batch(SecondsNow(), events);
}

std::string KvEvents::Snapshot() { return Encode(catalogue_.Snapshot()); }

void KvEvents::Collect(Metrics& metrics, const Labels& labels) const {
  const auto with = [&](const char* name, const char* value) {
    Labels more = labels;
    more[name] = value;
    return more;
  };
  const auto number = [](const auto& count) {
    return static_cast<double>(count.load(std::memory_order_relaxed));
  };
  for (const bool disk : {false, true}) {
    Labels medium = with("medium", disk ? "STORAGE" : "CPU");
    metrics.Counter("kvcove_owner_kv_events_stored_total",
                    "blocks that KV events told routers as stored", number(counts_.stored[disk]),
                    medium);
    metrics.Counter("kvcove_owner_kv_events_removed_total",
                    "blocks that KV events told routers as removed", number(counts_.removed[disk]),
                    medium);
  }
  metrics.Counter("kvcove_owner_kv_events_cleared_total",
                  "times that KV events told routers to forget all blocks", number(counts_.cleared),
                  labels);
  metrics.Counter("kvcove_owner_kv_events_lost_total",
                  "times that changes of keys came faster than they were told, so that KV events "
                  "began anew",
                  number(counts_.lost), labels);
  metrics.Gauge("kvcove_owner_kv_events_blocks", "blocks that KV events follow",
                number(counts_.blocks), labels);
  metrics.Counter("kvcove_owner_kv_events_left_out_total",
                  "values that KV events left out, beyond the most blocks that they follow",
                  number(counts_.left_out), labels);
  metrics.Counter("kvcove_owner_kv_events_foreign_total",
                  "values whose keys name no block of vLLM, so that no KV event tells them",
                  number(counts_.foreign), labels);
  const kvevents::Publisher::Counts& sent = publisher_->counts();
  metrics.Counter("kvcove_owner_kv_events_batches_total", "batches of KV events published",
                  number(sent.batches), labels);
  metrics.Counter("kvcove_owner_kv_events_bytes_total", "bytes of the published KV events",
                  number(sent.bytes), labels);
  metrics.Counter("kvcove_owner_kv_events_dropped_total",
                  "batches of KV events that ZeroMQ did not take; subscribers ask for a replay",
                  number(sent.failed), labels);
  metrics.Counter("kvcove_owner_kv_events_replays_total",
                  "replays of KV events that subscribers asked for", number(sent.replays), labels);
  metrics.Counter("kvcove_owner_kv_events_replayed_batches_total",
                  "batches of KV events sent again in replays", number(sent.replayed), labels);
  metrics.Counter("kvcove_owner_kv_events_snapshots_total",
                  "replays that began with a snapshot of all blocks, as earlier batches were gone",
                  number(sent.snapshots), labels);
  metrics.Counter("kvcove_owner_kv_events_replays_given_up_total",
                  "replays whose subscriber was gone or did not read for 10 s",
                  number(sent.given_up), labels);
  metrics.Counter("kvcove_owner_kv_events_bad_requests_total",
                  "requests for replays of a form that vLLM's subscribers do not use",
                  number(sent.bad), labels);
  metrics.Gauge("kvcove_owner_kv_events_subscribers", "subscriptions to KV events at the moment",
                number(sent.subscribers), labels);
}

}  // namespace kvcove::server
