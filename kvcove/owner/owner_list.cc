// SPDX-License-Identifier: Apache-2.0
// Lists, page by page: what is in memory, then what waits for disks, then what lies there. Values
// go down in this order, so that one that moves is met, once or twice; one that comes up behind the
// walk was met before. A key in both tiers comes once, with memory. A list holds nothing up: what a
// disk moves from zone to zone, or loses from a zone that is being listed, may hide others.
#include <algorithm>

#include "kvcove/base/directory.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/owner/owner.h"

namespace kvcove::owner {
namespace {

constexpr ObjectId kQueueAt = kZonesFrom - 1;        // the cursor between memory and zones
constexpr std::int64_t kPageNs = 20 * kMillisecond;  // of zones that a page reads

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

}  // namespace

Result<wire::InventoryReply> Owner::Page(const wire::InventoryRequest& request,
                                         std::int64_t deadline_ns) {
  const bool disks = request.disks && tiers_ != nullptr && disks_open_;
  const bool counts_only = request.cursor == wire::kInventoryDone;
  wire::InventoryReply reply;
  {
    const MutexLock lock(mutex_);
    // Of what is behind memory it has the counts.
    reply = core_->Page(request);
    reply.since = request.cursor == 0 ? core_->next_version() : request.since;
  }
  reply.disks = disks;
  if (!disks || counts_only || reply.cursor != wire::kInventoryDone) return reply;
  if (request.cursor < kQueueAt) {
    reply.cursor = kQueueAt;
  } else if (request.cursor == kQueueAt) {
    ListQueued(request, reply);
  } else {
    KVCOVE_TRY(ListZones(request, deadline_ns, reply));
  }
  return reply;
}

// What memory has had since the walk began was told with memory: one that has come up since may be
// behind the walk.
bool Owner::ListsFromDisk(const wire::InventoryRequest& request, const TierObject& object) const {
  return (!request.slot || object.slot == *request.slot) &&
         object.generation == core_->GenerationOf(object.slot) &&
         object.key.starts_with(request.prefix) &&
         (!request.replicated_only || UnpackPut(object.put).copies > 1) &&
         tiers_->Holds(object.slot, object.generation, object.key) &&
         !core_->HasSince(object.slot, object.key, request.since);
}

// In the order of their tags: `within` is the last one that was given.
void Owner::ListQueued(const wire::InventoryRequest& request, wire::InventoryReply& reply) {
  std::vector<std::shared_ptr<const Demotion>> found;
  for (std::size_t i = 0; i < tiers_->size(); ++i) {
    for (auto& demotion : (*tiers_)[i].PendingOf(request.slot)) {
      if (demotion->tag > request.within) found.push_back(std::move(demotion));
    }
  }
  std::ranges::sort(found, {}, [](const auto& demotion) { return demotion->tag; });
  const bool more = found.size() > request.at_most;
  if (more) found.resize(request.at_most);
  std::vector<TierObject> objects;
  for (const auto& one : found) {
    objects.push_back({.slot = one->slot,
                       .generation = one->generation,
                       .put = one->put,
                       .size_bytes = one->size_bytes,
                       .key = one->key});
  }
  ListZone(objects, 0, request, reply);
  reply.cursor = more ? kQueueAt : kZonesFrom;
  reply.within = more ? found.back()->tag : 0;
}

// From `at` on, until the page is full. The first that was not looked at.
std::size_t Owner::ListZone(const std::vector<TierObject>& objects, std::size_t at,
                            const wire::InventoryRequest& request, wire::InventoryReply& reply) {
  while (at < objects.size() && reply.objects.size() < request.at_most) {
    const std::size_t end = std::min(at + kSlice, objects.size());
    const MutexLock lock(mutex_);
    for (; at < end && reply.objects.size() < request.at_most; ++at) {
      if (ListsFromDisk(request, objects[at])) reply.objects.push_back(Held(objects[at]));
    }
  }
  return at;
}

// `within`: how many of the zone's objects were looked at.
Status Owner::ListZones(const wire::InventoryRequest& request, std::int64_t deadline_ns,
                        wire::InventoryReply& reply) {
  reply.cursor = request.cursor;
  reply.within = request.within;
  const std::int64_t turn_ns = clock_.NowNs() + kPageNs;
  while (reply.objects.size() < request.at_most && clock_.NowNs() < turn_ns) {
    const std::size_t disk = (reply.cursor - kZonesFrom) / kZonesADisk;
    const std::uint32_t number = (reply.cursor - kZonesFrom) % kZonesADisk;
    if (disk >= tiers_->size()) {
      reply.cursor = wire::kInventoryDone;
      return {};
    }
    TierInventory& inventory = (*tiers_)[disk].inventory();
    if (number >= inventory.zones()) {
      reply.cursor = kZonesFrom + (static_cast<ObjectId>(disk + 1) * kZonesADisk);
      continue;
    }
    const auto zone = inventory.Ask(number, /*whole=*/false);
    if (Tier* const tier = TierOf(disk); tier != nullptr) tier->Wake();
    while (!inventory.Await(*zone, std::max<std::int64_t>(LeftNs(deadline_ns, clock_), 1))) {
      if (LeftNs(deadline_ns, clock_) > 0) continue;
      return Fail(Code::kTimeout, "a disk did not say in time what it holds");
    }
    const std::size_t at = ListZone(zone->objects, reply.within, request, reply);
    const bool whole = at >= zone->objects.size();
    reply.within = whole ? 0 : at;
    if (whole) ++reply.cursor;
  }
  return {};
}

}  // namespace kvcove::owner
