// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/object_pages.h"

#include <algorithm>
#include <vector>

#include "kvcove/base/interrupt.h"

namespace kvcove::owner {
namespace {

constexpr ObjectId kQueueAt = kZonesFrom - 1;        // the cursor of queued values
constexpr std::int64_t kPageNs = 20 * kMillisecond;  // time in which a page reads zones

wire::HeldObject Held(const TierObject& object) {
  return {.hash = DirectoryHash(object.slot, object.key),
          .generation = object.generation,
          .version = object.put,
          .size_bytes = object.size_bytes,
          .slot = object.slot,
          .copies = UnpackPut(object.put).copies,
          .tier = kvcove::Tier::kDisk,
          .key = object.key};
}

class Pages {
 public:
  Pages(OwnerDisks& disks, Memory& memory, const Clock& clock,
        const wire::InventoryRequest& request)
      : disks_(disks), memory_(memory), clock_(clock), request_(request) {}
  Result<wire::InventoryReply> Page(std::int64_t deadline_ns);

 private:
  bool Lists(const TierObject& object) KVCOVE_REQUIRES(memory_.mutex);
  void ListQueued();
  std::size_t ListZone(const std::vector<TierObject>& objects, std::size_t at);
  Status ListZones(std::int64_t deadline_ns);

  OwnerDisks& disks_;
  Memory& memory_;
  const Clock& clock_;
  const wire::InventoryRequest& request_;
  wire::InventoryReply reply_;
};

Result<wire::InventoryReply> Pages::Page(std::int64_t deadline_ns) {
  const bool disks = request_.disks && disks_.open();
  const bool counts_only = request_.cursor == wire::kInventoryDone;
  {
    const MutexLock lock(memory_.mutex);
    // For cursors behind memory, the core returns the counts only.
    reply_ = memory_.core().Page(request_);
    reply_.since = request_.cursor == 0 ? memory_.core().next_version() : request_.since;
  }
  reply_.disks = disks;
  if (!disks || counts_only || reply_.cursor != wire::kInventoryDone) return std::move(reply_);
  if (request_.cursor < kQueueAt) {
    reply_.cursor = kQueueAt;
  } else if (request_.cursor == kQueueAt) {
    ListQueued();
  } else {
    KVCOVE_TRY(ListZones(deadline_ns));
  }
  return std::move(reply_);
}

// Returns true if the page has the object. Keys that memory has had since the walk began were
// listed with memory; a key that was promoted since may not have been, for its place may be behind
// the walk.
bool Pages::Lists(const TierObject& object) {
  return (!request_.slot || object.slot == *request_.slot) &&
         object.generation == memory_.core().GenerationOf(object.slot) &&
         object.key.starts_with(request_.prefix) &&
         (!request_.replicated_only || UnpackPut(object.put).copies > 1) &&
         disks_.set().Holds(object.slot, object.generation, object.key) &&
         !memory_.core().HasSince(object.slot, object.key, request_.since);
}

// Lists queued values in the order of their tags. `within`: the last tag that was listed.
void Pages::ListQueued() {
  std::vector<std::shared_ptr<const Demotion>> found;
  for (std::size_t i = 0; i < disks_.set().size(); ++i) {
    for (auto& demotion : disks_.set()[i].demotions().PendingOf(request_.slot)) {
      if (demotion->tag > request_.within) found.push_back(std::move(demotion));
    }
  }
  std::ranges::sort(found, {}, [](const auto& demotion) { return demotion->tag; });
  const bool more = found.size() > request_.at_most;
  if (more) found.resize(request_.at_most);
  std::vector<TierObject> objects;
  for (const auto& one : found) {
    objects.push_back({.slot = one->slot,
                       .generation = one->generation,
                       .put = one->put,
                       .size_bytes = one->size_bytes,
                       .key = one->key});
  }
  (void)ListZone(objects, 0);
  reply_.cursor = more ? kQueueAt : kZonesFrom;
  reply_.within = more ? found.back()->tag : 0;
}

// Lists objects from `at` on, until the page is full. Returns the index of the first one that was
// not looked at.
std::size_t Pages::ListZone(const std::vector<TierObject>& objects, std::size_t at) {
  while (at < objects.size() && reply_.objects.size() < request_.at_most) {
    const std::size_t end = std::min(at + Memory::kSlice, objects.size());
    const MutexLock lock(memory_.mutex);
    for (; at < end && reply_.objects.size() < request_.at_most; ++at) {
      if (Lists(objects[at])) reply_.objects.push_back(Held(objects[at]));
    }
  }
  return at;
}

// Lists zones for kPageNs. `within`: how many of the zone's objects were looked at.
Status Pages::ListZones(std::int64_t deadline_ns) {
  reply_.cursor = request_.cursor;
  reply_.within = request_.within;
  const std::int64_t turn_ns = clock_.NowNs() + kPageNs;
  while (reply_.objects.size() < request_.at_most && clock_.NowNs() < turn_ns) {
    const std::size_t disk = (reply_.cursor - kZonesFrom) / kZonesADisk;
    const std::uint32_t number = (reply_.cursor - kZonesFrom) % kZonesADisk;
    if (disk >= disks_.set().size()) {
      reply_.cursor = wire::kInventoryDone;
      return {};
    }
    DiskInventory& inventory = disks_.set()[disk].inventory();
    if (number >= inventory.zones()) {
      reply_.cursor = kZonesFrom + (static_cast<ObjectId>(disk + 1) * kZonesADisk);
      continue;
    }
    const auto zone = inventory.Ask(number, /*whole=*/false);
    if (DiskThread* const thread = disks_.ThreadOf(disk); thread != nullptr) thread->Wake();
    while (!inventory.Await(*zone, std::max<std::int64_t>(LeftNs(deadline_ns, clock_), 1))) {
      if (LeftNs(deadline_ns, clock_) > 0) continue;
      return Fail(Code::kTimeout, "a disk did not list its objects in time; repeat the call");
    }
    const std::size_t at = ListZone(zone->objects, reply_.within);
    const bool whole = at >= zone->objects.size();
    reply_.within = whole ? 0 : at;
    if (whole) ++reply_.cursor;
  }
  return {};
}

}  // namespace

Result<wire::InventoryReply> ListObjects(OwnerDisks& disks, Memory& memory, const Clock& clock,
                                         const wire::InventoryRequest& request,
                                         std::int64_t deadline_ns) {
  return Pages(disks, memory, clock, request).Page(deadline_ns);
}

}  // namespace kvcove::owner
