// SPDX-License-Identifier: Apache-2.0
// Lists, page by page: what is in memory, then what waits for disks, then what lies there. Values
// go down in this order, so that one that moves is met, once or twice; one that comes up behind the
// walk was met before. A list holds nothing up: what a disk moves from zone to zone meanwhile may
// be missed.
#include <algorithm>

#include "kvcove/base/directory.h"
#include "kvcove/owner/owner.h"

namespace kvcove::owner {
namespace {

constexpr ObjectId kQueueAt = kZonesFrom - 1;        // the cursor between memory and zones
constexpr std::int64_t kPageNs = 20 * kMillisecond;  // of zones that a page reads

wire::HeldObject OnDisk(SlotId slot, Generation generation, std::uint64_t put,
                        std::uint32_t size_bytes, std::string key) {
  return {.hash = DirectoryHash(slot, key),
          .generation = generation,
          .version = put,
          .size_bytes = size_bytes,
          .slot = slot,
          .copies = UnpackPut(put).copies,
          .tier = kvcove::Tier::kDisk,
          .key = std::move(key)};
}

}  // namespace

Result<wire::InventoryReply> Owner::Page(const wire::InventoryRequest& request,
                                         std::int64_t deadline_ns) {
  const bool disks = request.disks && request.slot && tiers_ != nullptr && disks_open_;
  const bool counts_only = request.cursor == wire::kInventoryDone;
  wire::InventoryReply reply;
  {
    const MutexLock lock(mutex_);
    // Of what is behind memory it has the counts.
    reply = core_->Page(request);
  }
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

// In the order of their tags: `within` is the last one that was given.
void Owner::ListQueued(const wire::InventoryRequest& request, wire::InventoryReply& reply) {
  std::vector<std::shared_ptr<const Demotion>> found;
  for (std::size_t i = 0; i < tiers_->size(); ++i) {
    for (auto& demotion : (*tiers_)[i].PendingOf(*request.slot, reply.generation)) {
      if (demotion->tag > request.within && demotion->key.starts_with(request.prefix)) {
        found.push_back(std::move(demotion));
      }
    }
  }
  std::ranges::sort(found, {}, [](const auto& demotion) { return demotion->tag; });
  const bool more = found.size() > request.at_most;
  if (more) found.resize(request.at_most);
  for (const auto& one : found) {
    reply.objects.push_back(
        OnDisk(one->slot, one->generation, one->put, one->size_bytes, one->key));
  }
  reply.cursor = more ? kQueueAt : kZonesFrom;
  reply.within = more ? found.back()->tag : 0;
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
    while (!inventory.Await(*zone, std::max<std::int64_t>(deadline_ns - clock_.NowNs(), 1))) {
      if (clock_.NowNs() < deadline_ns) continue;
      return Fail(Code::kTimeout, "a disk did not say in time what it holds");
    }
    std::size_t at = reply.within;
    for (; at < zone->objects.size() && reply.objects.size() < request.at_most; ++at) {
      const TierObject& object = zone->objects[at];
      if (object.slot != *request.slot || object.generation != reply.generation ||
          !object.key.starts_with(request.prefix) ||
          !tiers_->Holds(object.slot, object.generation, object.key)) {
        continue;
      }
      reply.objects.push_back(
          OnDisk(object.slot, object.generation, object.put, object.size_bytes, object.key));
    }
    const bool whole = at >= zone->objects.size();
    reply.within = whole ? 0 : at;
    if (whole) ++reply.cursor;
  }
  return {};
}

}  // namespace kvcove::owner
