// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/shards.h"

#include "kvcove/wire/shards_flat.h"

namespace kvcove::wire {
namespace {

constexpr std::uint8_t kTellsFirst = 1;
constexpr std::uint8_t kDiskAway = 2;

template <typename List, typename Of>
auto Column(Builder& builder, const List& list, Of of) {
  std::vector<decltype(of(list.front()))> values;
  values.reserve(list.size());
  for (const auto& one : list) values.push_back(of(one));
  return builder.CreateVector(values);
}

Status KnownSlots(const flatbuffers::Vector<std::uint16_t>* list) {
  if (!Aligned(list, 2)) return Misaligned();
  for (unsigned i = 0; i < SizeOf(list); ++i) {
    if (list->Get(i) >= kMaxSlots) return Fail(Code::kCorrupt, "an unknown slot");
  }
  return {};
}

Status KnownOwners(const flatbuffers::Vector<std::uint16_t>* list) {
  if (!Aligned(list, 2)) return Misaligned();
  for (unsigned i = 0; i < SizeOf(list); ++i) {
    if (list->Get(i) >= kMaxOwners) return Fail(Code::kCorrupt, "an unknown owner");
  }
  return {};
}

std::vector<std::uint16_t> Values(const flatbuffers::Vector<std::uint16_t>* list) {
  std::vector<std::uint16_t> values;
  for (unsigned i = 0; i < SizeOf(list); ++i) values.push_back(list->Get(i));
  return values;
}

flatbuffers::Offset<fb::OwnerRow> Add(Builder& builder, const ShardSyncReply::Owner& owner) {
  const auto slots = [&](const std::vector<SlotId>& list) {
    return list.empty() ? flatbuffers::Offset<flatbuffers::Vector<std::uint16_t>>()
                        : builder.CreateVector(list);
  };
  const auto hidden = slots(owner.hidden);
  const auto drops = slots(owner.drops);
  const auto flags = static_cast<std::uint8_t>((owner.tells_first ? kTellsFirst : 0) |
                                               (owner.disk_away ? kDiskAway : 0));
  return fb::CreateOwnerRow(builder, owner.number, owner.epoch, owner.first_epoch, owner.told_epoch,
                            owner.live_ns, owner.present_ns, flags, owner.tenant, hidden, drops);
}

Result<ShardSyncReply::Owner> From(const fb::OwnerRow* row) {
  if (row->number() >= kMaxOwners) return Fail(Code::kCorrupt, "an unknown owner");
  KVCOVE_TRY(KnownSlots(row->hidden()));
  KVCOVE_TRY(KnownSlots(row->drops()));
  return ShardSyncReply::Owner{.number = row->number(),
                               .epoch = row->epoch(),
                               .first_epoch = row->first_epoch(),
                               .told_epoch = row->told_epoch(),
                               .live_ns = row->live_ns(),
                               .present_ns = row->present_ns(),
                               .tells_first = (row->flags() & kTellsFirst) != 0,
                               .disk_away = (row->flags() & kDiskAway) != 0,
                               .tenant = row->tenant(),
                               .hidden = Values(row->hidden()),
                               .drops = Values(row->drops())};
}

}  // namespace

// ---- maps

flatbuffers::Offset<fb::ShardMap> AddMap(Builder& builder,
                                         const std::shared_ptr<const ShardMap>& map) {
  if (map == nullptr) return {};
  std::vector<std::uint16_t> starts;
  std::vector<std::uint8_t> shards;
  std::vector<std::uint64_t> fresh;
  for (std::size_t i = 0; i < kSlices; ++i) {
    if (i > 0 && map->shards[i] == map->shards[i - 1] && map->fresh[i] == map->fresh[i - 1]) {
      continue;
    }
    starts.push_back(static_cast<std::uint16_t>(i));
    shards.push_back(map->shards[i]);
    fresh.push_back(map->fresh[i]);
  }
  const auto addresses = TextsOf(builder, map->addresses);
  const auto starts_list = builder.CreateVector(starts);
  const auto shards_list = builder.CreateVector(shards);
  const auto fresh_list = builder.CreateVector(fresh);
  return fb::CreateShardMap(builder, map->term, map->revision, addresses, starts_list, shards_list,
                            fresh_list);
}

Result<std::shared_ptr<const ShardMap>> MapFrom(const fb::ShardMap* root) {
  if (root == nullptr) return std::shared_ptr<const ShardMap>();
  const std::size_t runs = SizeOf(root->starts());
  if (SizeOf(root->shards()) != runs || SizeOf(root->fresh()) != runs) return WrongCount();
  if (!Aligned(root->starts(), 2) || !Aligned(root->fresh())) return Misaligned();
  if (runs == 0 || runs > kSlices || root->starts()->Get(0) != 0 ||
      SizeOf(root->addresses()) > kMaxShards || SizeOf(root->addresses()) == 0) {
    return Fail(Code::kCorrupt, "a shard map that says nothing of some keys");
  }
  auto map = std::make_shared<ShardMap>();
  map->term = root->term();
  map->revision = root->revision();
  for (unsigned i = 0; i < SizeOf(root->addresses()); ++i) {
    map->addresses.push_back(Str(root->addresses()->Get(i)));
  }
  for (unsigned run = 0; run < runs; ++run) {
    const std::size_t begin = root->starts()->Get(run);
    const std::size_t end = run + 1 < runs ? root->starts()->Get(run + 1) : kSlices;
    const ShardNumber shard = root->shards()->Get(run);
    if (begin >= end || end > kSlices || shard >= map->addresses.size()) {
      return Fail(Code::kCorrupt, "a shard map whose parts do not fit");
    }
    for (std::size_t i = begin; i < end; ++i) {
      map->shards[i] = shard;
      map->fresh[i] = root->fresh()->Get(run);
    }
  }
  return std::shared_ptr<const ShardMap>(std::move(map));
}

// ---- following the leader

std::string Encode(const ShardSyncRequest& message) {
  Builder builder;
  const auto address = Text(builder, message.address);
  const auto removed = Column(builder, message.removed, [](const auto& one) { return one.number; });
  const auto counts = Column(builder, message.removed, [](const auto& one) {
    return static_cast<std::uint32_t>(one.codes.size());
  });
  std::vector<std::uint8_t> codes;
  for (const auto& one : message.removed) {
    for (const Code code : one.codes) codes.push_back(static_cast<std::uint8_t>(code));
  }
  const auto code_list = builder.CreateVector(codes);
  const auto held_slots =
      Column(builder, message.entries_of_slots, [](const auto& one) { return one.first; });
  const auto held_entries =
      Column(builder, message.entries_of_slots, [](const auto& one) { return one.second; });
  const auto held_bytes = builder.CreateVector(message.bytes_of_slots);
  const fb::Id process = ToFb(message.process);
  return Done(builder,
              fb::CreateShardSync(builder, &process, address, message.term, message.session,
                                  message.position, message.frozen, message.loaded, message.failed,
                                  removed, counts, code_list, message.entries, held_slots,
                                  held_entries, held_bytes));
}

Result<ShardSyncRequest> DecodeShardSync(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::ShardSync>(body));
  if (SizeOf(root->removed()) != SizeOf(root->counts())) return WrongCount();
  if (SizeOf(root->held_slots()) != SizeOf(root->held_entries())) return WrongCount();
  const unsigned with_bytes = SizeOf(root->held_bytes());
  if (with_bytes != 0 && with_bytes != SizeOf(root->held_slots())) return WrongCount();
  if (!Aligned(root->removed()) || !Aligned(root->counts(), 4) || !Aligned(root->held_entries()) ||
      !Aligned(root->held_bytes())) {
    return Misaligned();
  }
  KVCOVE_TRY(KnownSlots(root->held_slots()));
  ShardSyncRequest request{.process = FromFb(root->process()),
                           .address = Str(root->address()),
                           .term = root->term(),
                           .session = root->session(),
                           .position = root->position(),
                           .frozen = root->frozen(),
                           .loaded = root->loaded(),
                           .failed = root->failed(),
                           .removed = {},
                           .entries = root->entries(),
                           .entries_of_slots = {},
                           .bytes_of_slots = {}};
  for (unsigned i = 0; i < SizeOf(root->held_slots()); ++i) {
    request.entries_of_slots.emplace_back(root->held_slots()->Get(i), root->held_entries()->Get(i));
  }
  for (unsigned i = 0; i < with_bytes; ++i) {
    request.bytes_of_slots.push_back(root->held_bytes()->Get(i));
  }
  unsigned at = 0;
  for (unsigned i = 0; i < SizeOf(root->removed()); ++i) {
    ShardSyncRequest::Removed one{.number = root->removed()->Get(i), .codes = {}};
    for (std::uint32_t k = 0; k < root->counts()->Get(i); ++k) {
      if (at >= SizeOf(root->codes())) return WrongCount();
      KVCOVE_ASSIGN(const Code code, ToCode(root->codes()->Get(at++)));
      one.codes.push_back(code);
    }
    request.removed.push_back(std::move(one));
  }
  return request;
}

std::string Encode(const ShardSyncReply& message) {
  Builder builder;
  std::vector<flatbuffers::Offset<fb::OwnerRow>> rows;
  rows.reserve(message.owners.size());
  for (const ShardSyncReply::Owner& owner : message.owners) rows.push_back(Add(builder, owner));
  const auto owners = builder.CreateVector(rows);
  const auto slots = Column(builder, message.slots, [](const auto& one) { return one.slot; });
  const auto generations =
      Column(builder, message.slots, [](const auto& one) { return one.generation; });
  const auto tenants = Column(builder, message.slots, [](const auto& one) { return one.tenant; });
  const auto removals = AddRemovals(builder, message.removals);
  const auto map = AddMap(builder, message.map);
  const auto serves = Column(builder, message.serves,
                             [](SliceState state) { return static_cast<std::uint8_t>(state); });
  flatbuffers::Offset<fb::ShardMove> move;
  if (message.move.id != 0) {
    const auto address = Text(builder, message.move.address);
    const auto slices = builder.CreateVector(message.move.slices);
    move = fb::CreateShardMove(builder, message.move.id, message.move.from, message.move.to,
                               address, slices);
  }
  const auto full_tenants = builder.CreateVector(message.full_tenants);
  return Done(builder, fb::CreateShardSyncReply(
                           builder, message.term, message.session, message.number, message.lease_ns,
                           message.position, message.all, owners, slots, generations, tenants,
                           removals, message.shown, message.floor, map, serves, move,
                           message.untold, message.warming, message.full, full_tenants));
}

Result<ShardSyncReply> DecodeShardSyncReply(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::ShardSyncReply>(body));
  const std::size_t slots = SizeOf(root->slots());
  if (SizeOf(root->generations()) != slots || SizeOf(root->tenants()) != slots) return WrongCount();
  if (SizeOf(root->serves()) != 0 && SizeOf(root->serves()) != kSlices) return WrongCount();
  if (!Aligned(root->generations()) || !Aligned(root->tenants()) ||
      !Aligned(root->full_tenants())) {
    return Misaligned();
  }
  KVCOVE_TRY(KnownSlots(root->slots()));
  ShardSyncReply reply{.term = root->term(),
                       .session = root->session(),
                       .number = root->number(),
                       .lease_ns = root->lease_ns(),
                       .position = root->position(),
                       .all = root->all(),
                       .owners = {},
                       .slots = {},
                       .removals = {},
                       .shown = root->shown(),
                       .floor = root->floor(),
                       .serves = {},
                       .move = {},
                       .untold = root->untold(),
                       .warming = root->warming(),
                       .full = root->full(),
                       .full_tenants = {}};
  for (unsigned i = 0; i < SizeOf(root->full_tenants()); ++i) {
    reply.full_tenants.push_back(root->full_tenants()->Get(i));
  }
  for (unsigned i = 0; i < SizeOf(root->owners()); ++i) {
    KVCOVE_ASSIGN(ShardSyncReply::Owner owner, From(root->owners()->Get(i)));
    reply.owners.push_back(std::move(owner));
  }
  for (unsigned i = 0; i < slots; ++i) {
    reply.slots.push_back({.slot = root->slots()->Get(i),
                           .generation = root->generations()->Get(i),
                           .tenant = root->tenants()->Get(i)});
  }
  KVCOVE_ASSIGN(reply.removals, RemovalsFrom(root->removals()));
  KVCOVE_ASSIGN(reply.map, MapFrom(root->map()));
  for (unsigned i = 0; i < SizeOf(root->serves()); ++i) {
    const std::uint8_t state = root->serves()->Get(i);
    if (state > static_cast<std::uint8_t>(SliceState::kLeft)) {
      return Fail(Code::kCorrupt, "an unknown state of a slice");
    }
    reply.serves.push_back(static_cast<SliceState>(state));
  }
  if (const fb::ShardMove* move = root->move(); move != nullptr) {
    if (!Aligned(move->slices(), 2)) return Misaligned();
    reply.move = {.id = move->id(),
                  .from = move->from(),
                  .to = move->to(),
                  .address = Str(move->address()),
                  .slices = Values(move->slices())};
    for (const SliceNumber slice : reply.move.slices) {
      if (slice >= kSlices) return Fail(Code::kCorrupt, "an unknown slice");
    }
  }
  return reply;
}

// ---- values that give way

std::string Encode(const ShardBarRequest& message) {
  Builder builder;
  const auto owners = Column(builder, message.values, [](const auto& one) { return one.first; });
  const auto slots = Column(builder, message.values, [](const auto& one) { return one.second; });
  return Done(builder, fb::CreateShardBar(builder, owners, slots));
}

Result<ShardBarRequest> DecodeShardBar(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::ShardBar>(body));
  if (SizeOf(root->owners()) != SizeOf(root->slots())) return WrongCount();
  KVCOVE_TRY(KnownOwners(root->owners()));
  KVCOVE_TRY(KnownSlots(root->slots()));
  ShardBarRequest request;
  for (unsigned i = 0; i < SizeOf(root->owners()); ++i) {
    request.values.emplace_back(root->owners()->Get(i), root->slots()->Get(i));
  }
  return request;
}

std::string Encode(const ShardBarReply& message) {
  Builder builder;
  const auto gives_way = Column(builder, message.answers, [](const auto& one) {
    return static_cast<std::uint8_t>(one.gives_way);
  });
  const auto epochs = Column(builder, message.answers, [](const auto& one) { return one.epoch; });
  return Done(builder, fb::CreateShardBarReply(builder, gives_way, epochs));
}

Result<ShardBarReply> DecodeShardBarReply(std::span<const std::byte> body, std::size_t expected) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::ShardBarReply>(body));
  if (SizeOf(root->gives_way()) != expected || SizeOf(root->epochs()) != expected) {
    return WrongCount();
  }
  if (!Aligned(root->epochs(), 4)) return Misaligned();
  ShardBarReply reply;
  for (unsigned i = 0; i < expected; ++i) {
    const std::uint8_t gives_way = root->gives_way()->Get(i);
    if (gives_way > static_cast<std::uint8_t>(GivesWay::kThisToo)) {
      return Fail(Code::kCorrupt, "an unknown answer");
    }
    reply.answers.push_back(
        {.gives_way = static_cast<GivesWay>(gives_way), .epoch = root->epochs()->Get(i)});
  }
  return reply;
}

// ---- entries

std::string Encode(const ShardPullRequest& message) {
  Builder builder;
  return Done(builder, fb::CreateShardPull(builder, message.term, message.move, message.cursor));
}

Result<ShardPullRequest> DecodeShardPull(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::ShardPull>(body));
  return ShardPullRequest{.term = root->term(), .move = root->move(), .cursor = root->cursor()};
}

std::string Encode(const ShardPage& message) {
  Builder builder(message.entries.size() * 48 + 256);
  const auto& entries = message.entries;
  std::vector<fb::Id> ids;
  ids.reserve(entries.size());
  for (const ShardEntry& one : entries) ids.push_back(ToFb(one.hash));
  const auto hashes = builder.CreateVectorOfStructs(ids);
  const auto generations = Column(builder, entries, [](const auto& one) { return one.generation; });
  const auto sizes = Column(builder, entries, [](const auto& one) { return one.size_bytes; });
  const auto groups = Column(builder, entries, [](const auto& one) { return one.group; });
  const auto slots = Column(builder, entries, [](const auto& one) { return one.slot; });
  const auto tiers =
      Column(builder, entries, [](const auto& one) { return static_cast<std::uint8_t>(one.tier); });
  const auto owners = Column(builder, entries, [](const auto& one) { return one.owner; });
  const auto epochs = Column(builder, entries, [](const auto& one) { return one.epoch; });
  const auto superseded = Column(builder, entries, [](const auto& one) {
    return static_cast<std::uint8_t>(one.superseded ? 1 : 0);
  });
  return Done(builder,
              fb::CreateShardPage(builder, hashes, generations, sizes, groups, slots, tiers, owners,
                                  epochs, superseded, message.cursor, message.done, message.shown));
}

Result<ShardPage> DecodeShardPage(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::ShardPage>(body));
  const std::size_t count = SizeOf(root->hashes());
  if (SizeOf(root->generations()) != count || SizeOf(root->sizes()) != count ||
      SizeOf(root->groups()) != count || SizeOf(root->slots()) != count ||
      SizeOf(root->tiers()) != count || SizeOf(root->owners()) != count ||
      SizeOf(root->epochs()) != count || SizeOf(root->superseded()) != count) {
    return WrongCount();
  }
  if (!Aligned(root->hashes()) || !Aligned(root->generations()) || !Aligned(root->sizes(), 4) ||
      !Aligned(root->groups(), 4) || !Aligned(root->epochs(), 4)) {
    return Misaligned();
  }
  KVCOVE_TRY(KnownSlots(root->slots()));
  KVCOVE_TRY(KnownOwners(root->owners()));
  ShardPage page{
      .entries = {}, .cursor = root->cursor(), .done = root->done(), .shown = root->shown()};
  page.entries.reserve(count);
  for (unsigned i = 0; i < count; ++i) {
    KVCOVE_ASSIGN(const Tier tier, ToTier(root->tiers()->Get(i)));
    page.entries.push_back({.hash = FromFb(root->hashes()->Get(i)),
                            .generation = root->generations()->Get(i),
                            .size_bytes = root->sizes()->Get(i),
                            .group = root->groups()->Get(i),
                            .slot = root->slots()->Get(i),
                            .tier = tier,
                            .owner = root->owners()->Get(i),
                            .epoch = root->epochs()->Get(i),
                            .superseded = root->superseded()->Get(i) != 0});
  }
  return page;
}

// ---- what a shard knows of keys

std::string Encode(const ShardFindRequest& message) {
  Builder builder(message.keys.size() * 24 + 128);
  const auto slots = Column(builder, message.keys, [](const auto& one) { return one.first; });
  std::vector<fb::Id> ids;
  ids.reserve(message.keys.size());
  for (const auto& [slot, hash] : message.keys) ids.push_back(ToFb(hash));
  const auto hashes = builder.CreateVectorOfStructs(ids);
  return Done(builder, fb::CreateShardFind(builder, slots, hashes));
}

Result<ShardFindRequest> DecodeShardFind(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::ShardFind>(body));
  if (SizeOf(root->slots()) != SizeOf(root->hashes())) return WrongCount();
  if (SizeOf(root->slots()) > kMaxBatch) return Fail(Code::kCorrupt, "a batch that is too large");
  if (!Aligned(root->hashes())) return Misaligned();
  KVCOVE_TRY(KnownSlots(root->slots()));
  ShardFindRequest request;
  for (unsigned i = 0; i < SizeOf(root->slots()); ++i) {
    request.keys.emplace_back(root->slots()->Get(i), FromFb(root->hashes()->Get(i)));
  }
  return request;
}

std::string Encode(const ShardFindReply& message) {
  Builder builder(message.keys.size() * 32 + 128);
  const auto& keys = message.keys;
  const auto reasons =
      Column(builder, keys, [](const auto& one) { return static_cast<std::uint8_t>(one.reason); });
  const auto sizes = Column(builder, keys, [](const auto& one) { return one.size_bytes; });
  const auto counts = Column(builder, keys, [](const auto& one) {
    return static_cast<std::uint32_t>(one.holders.size());
  });
  std::vector<std::uint16_t> holders;
  std::vector<std::uint8_t> tiers;
  for (const HeldKey& key : keys) {
    for (const auto& [owner, tier] : key.holders) {
      holders.push_back(owner);
      tiers.push_back(static_cast<std::uint8_t>(tier));
    }
  }
  const auto holder_list = builder.CreateVector(holders);
  const auto tier_list = builder.CreateVector(tiers);
  const auto missed =
      Column(builder, keys, [](const auto& one) { return static_cast<std::uint8_t>(one.missed); });
  const auto misses = Column(builder, keys, [](const auto& one) { return one.misses; });
  const auto ages = Column(builder, keys, [](const auto& one) { return one.missed_age_ns; });
  return Done(builder, fb::CreateShardFindReply(builder, reasons, sizes, counts, holder_list,
                                                tier_list, missed, misses, ages));
}

Result<ShardFindReply> DecodeShardFindReply(std::span<const std::byte> body, std::size_t expected) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::ShardFindReply>(body));
  if (SizeOf(root->reasons()) != expected || SizeOf(root->sizes()) != expected ||
      SizeOf(root->counts()) != expected || SizeOf(root->missed()) != expected ||
      SizeOf(root->misses()) != expected || SizeOf(root->ages()) != expected ||
      SizeOf(root->tiers()) != SizeOf(root->holders())) {
    return WrongCount();
  }
  if (!Aligned(root->sizes(), 4) || !Aligned(root->counts(), 4) || !Aligned(root->misses(), 4) ||
      !Aligned(root->ages())) {
    return Misaligned();
  }
  KVCOVE_TRY(KnownOwners(root->holders()));
  ShardFindReply reply;
  unsigned at = 0;
  for (unsigned i = 0; i < expected; ++i) {
    HeldKey key{.size_bytes = root->sizes()->Get(i),
                .holders = {},
                .misses = root->misses()->Get(i),
                .missed_age_ns = root->ages()->Get(i)};
    KVCOVE_ASSIGN(key.reason, ToReason(root->reasons()->Get(i)));
    KVCOVE_ASSIGN(key.missed, ToReason(root->missed()->Get(i)));
    for (std::uint32_t k = 0; k < root->counts()->Get(i); ++k, ++at) {
      if (at >= SizeOf(root->holders())) return WrongCount();
      KVCOVE_ASSIGN(const Tier tier, ToTier(root->tiers()->Get(at)));
      key.holders.emplace_back(root->holders()->Get(at), tier);
    }
    reply.keys.push_back(std::move(key));
  }
  return reply;
}

}  // namespace kvcove::wire
