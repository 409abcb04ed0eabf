// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/owner_link.h"

#include "kvcove/wire/cluster_flat.h"
#include "kvcove/wire/shards_flat.h"

namespace kvcove::wire {
namespace {

constexpr std::uint8_t kGoneFlag = 1;
constexpr std::uint8_t kInventoryFlag = 2;
constexpr std::uint8_t kReturnsFlag = 4;

flatbuffers::Offset<fb::Changes> Add(Builder& builder, const Changes& message) {
  std::vector<flatbuffers::Offset<fb::SlotChange>> slots;
  for (const SlotUpdate& slot : message.slots) {
    const auto name = Text(builder, slot.name);
    slots.push_back(fb::CreateSlotChange(builder, slot.slot, slot.generation, name));
  }
  const auto slot_list = builder.CreateVector(slots);
  const auto unnamed = builder.CreateVector(message.unnamed);
  const auto map = AddMap(builder, message.map);
  const fb::Id incarnation = ToFb(message.incarnation);
  return fb::CreateChanges(builder, &incarnation, message.from, message.to, message.more, slot_list,
                           message.naming, message.names_changed, unnamed, map);
}

Result<std::vector<SlotId>> SlotsFrom(const flatbuffers::Vector<std::uint16_t>* list) {
  std::vector<SlotId> slots;
  for (unsigned i = 0; i < SizeOf(list); ++i) {
    if (list->Get(i) >= kMaxSlots) return Fail(Code::kCorrupt, "an unknown slot");
    slots.push_back(list->Get(i));
  }
  return slots;
}

Result<Changes> From(const fb::Changes* root) {
  if (root == nullptr) return Fail(Code::kCorrupt, "a message without changes");
  if (!Aligned(root->unnamed(), 2)) return Misaligned();
  Changes changes{.incarnation = FromFb(root->incarnation()),
                  .from = root->from(),
                  .to = root->to(),
                  .more = root->more(),
                  .slots = {},
                  .naming = root->naming(),
                  .names_changed = root->names_changed(),
                  .unnamed = {}};
  for (unsigned i = 0; i < SizeOf(root->slots()); ++i) {
    const fb::SlotChange* slot = root->slots()->Get(i);
    if (slot->slot() >= kMaxSlots) return Fail(Code::kCorrupt, "an unknown slot");
    changes.slots.push_back(
        {.slot = slot->slot(), .generation = slot->generation(), .name = Str(slot->name())});
  }
  KVCOVE_ASSIGN(changes.unnamed, SlotsFrom(root->unnamed()));
  KVCOVE_ASSIGN(changes.map, MapFrom(root->map()));
  return changes;
}

}  // namespace

std::string Encode(const OwnerHello& message) {
  Builder builder;
  const auto address = Text(builder, message.address);
  const auto socket = Text(builder, message.socket);
  const auto host = Text(builder, message.host);
  const auto tenant = Text(builder, message.tenant);
  const fb::Id pool = ToFb(message.pool);
  const fb::Id incarnation = ToFb(message.incarnation);
  const fb::Id owner = ToFb(message.owner);
  const fb::Id process = ToFb(message.process);
  const fb::Id predecessor = ToFb(message.predecessor);
  const fb::Id opening = ToFb(message.opening);
  const fb::Id opening_before = ToFb(message.opening_before);
  return Done(builder, fb::CreateOwnerHello(
                           builder, &pool, &incarnation, message.seen.term, message.seen.tag,
                           message.seen.revision, &owner, message.fresh, &process, &predecessor,
                           message.number, message.epoch, address, socket, host, tenant,
                           message.capacity_bytes, message.disk, &opening, &opening_before));
}

Result<OwnerHello> DecodeOwnerHello(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::OwnerHello>(body));
  return OwnerHello{
      .pool = FromFb(root->pool()),
      .incarnation = FromFb(root->incarnation()),
      .seen = {.term = root->term(), .tag = root->tag(), .revision = root->revision()},
      .owner = FromFb(root->owner()),
      .fresh = root->fresh(),
      .process = FromFb(root->process()),
      .predecessor = FromFb(root->predecessor()),
      .number = root->number(),
      .epoch = root->epoch(),
      .address = Str(root->address()),
      .socket = Str(root->socket()),
      .host = Str(root->host()),
      .tenant = Str(root->tenant()),
      .capacity_bytes = root->capacity_bytes(),
      .disk = root->disk(),
      .opening = FromFb(root->opening()),
      .opening_before = FromFb(root->opening_before())};
}

std::string Encode(const OwnerWelcome& message) {
  Builder builder;
  const fb::Id pool = ToFb(message.pool);
  const fb::Id incarnation = ToFb(message.incarnation);
  const fb::Id opening = ToFb(message.opening.value_or(Id128{}));
  return Done(builder,
              fb::CreateOwnerWelcome(
                  builder, &pool, &incarnation, message.position.term, message.position.tag,
                  message.position.revision, message.forgotten, message.number, message.epoch,
                  message.lease_ns, message.resumed, message.tell_first, message.removals,
                  message.opening ? &opening : nullptr, message.rolled_back));
}

Result<OwnerWelcome> DecodeOwnerWelcome(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::OwnerWelcome>(body));
  return OwnerWelcome{
      .pool = FromFb(root->pool()),
      .incarnation = FromFb(root->incarnation()),
      .position = {.term = root->term(), .tag = root->tag(), .revision = root->revision()},
      .forgotten = root->forgotten(),
      .number = root->number(),
      .epoch = root->epoch(),
      .lease_ns = root->lease_ns(),
      .resumed = root->resumed(),
      .tell_first = root->tell_first(),
      .removals = root->removals(),
      .opening = root->opening() != nullptr ? std::optional(FromFb(root->opening())) : std::nullopt,
      .rolled_back = root->rolled_back()};
}

std::string Encode(const Changes& message) {
  Builder builder;
  return Done(builder, Add(builder, message));
}

Result<Changes> DecodeChanges(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Changes>(body));
  return From(root);
}

std::string Encode(const RenewRequest& message) {
  Builder builder;
  const fb::Id opening = ToFb(message.opening);
  return Done(builder,
              fb::CreateRenew(builder, message.number, message.epoch, message.table, message.naming,
                              message.told, message.free_bytes, message.objects, message.hits,
                              message.evictions, message.stale_puts, message.puts, message.partial,
                              message.disk_away, message.map, message.told_map, message.disks,
                              message.disks_aside, message.disk_capacity_bytes, message.disk_bytes,
                              message.leased, message.disks_void, &opening, message.hit_bytes,
                              message.put_bytes, message.disk_hits, message.disk_hit_bytes));
}

Result<RenewRequest> DecodeRenew(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Renew>(body));
  return RenewRequest{.number = root->number(),
                      .epoch = root->epoch(),
                      .table = root->table(),
                      .naming = root->naming(),
                      .told = root->told(),
                      .free_bytes = root->free_bytes(),
                      .objects = root->objects(),
                      .hits = root->hits(),
                      .evictions = root->evictions(),
                      .stale_puts = root->stale_puts(),
                      .puts = root->puts(),
                      .partial = root->partial(),
                      .disk_away = root->disk_away(),
                      .map = root->map(),
                      .told_map = root->told_map(),
                      .disks = root->disks(),
                      .disks_aside = root->disks_aside(),
                      .disk_capacity_bytes = root->disk_capacity_bytes(),
                      .disk_bytes = root->disk_bytes(),
                      .leased = root->leased(),
                      .disks_void = root->disks_void(),
                      .opening = FromFb(root->opening()),
                      .hit_bytes = root->hit_bytes(),
                      .put_bytes = root->put_bytes(),
                      .disk_hits = root->disk_hits(),
                      .disk_hit_bytes = root->disk_hit_bytes()};
}

std::string Encode(const RenewReply& message) {
  Builder builder;
  const auto changes = Add(builder, message.changes);
  const auto hidden = builder.CreateVector(message.hidden);
  const fb::Id opening = ToFb(message.opening);
  return Done(builder,
              fb::CreateRenewReply(builder, message.granted, message.lease_ns, message.revision,
                                   hidden, message.draining, changes, message.tell_again,
                                   message.doubted, message.disks_void, &opening));
}

Result<RenewReply> DecodeRenewReply(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::RenewReply>(body));
  if (!Aligned(root->hidden(), 2)) return Misaligned();
  KVCOVE_ASSIGN(Changes changes, From(root->changes()));
  KVCOVE_ASSIGN(std::vector<SlotId> hidden, SlotsFrom(root->hidden()));
  return RenewReply{.granted = root->granted(),
                    .lease_ns = root->lease_ns(),
                    .revision = root->revision(),
                    .hidden = std::move(hidden),
                    .draining = root->draining(),
                    .changes = std::move(changes),
                    .tell_again = root->tell_again(),
                    .doubted = root->doubted(),
                    .disks_void = root->disks_void(),
                    .opening = FromFb(root->opening())};
}

std::string Encode(const WatchRequest& message) {
  Builder builder;
  const fb::Id opening = ToFb(message.opening);
  return Done(builder, fb::CreateWatch(builder, message.number, message.epoch, message.table,
                                       message.naming, message.partial, message.map, &opening));
}

Result<WatchRequest> DecodeWatch(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Watch>(body));
  return WatchRequest{.number = root->number(),
                      .epoch = root->epoch(),
                      .table = root->table(),
                      .naming = root->naming(),
                      .partial = root->partial(),
                      .map = root->map(),
                      .opening = FromFb(root->opening())};
}

std::string Encode(const RemovalsRequest& message) {
  Builder builder;
  std::vector<flatbuffers::Offset<fb::Matched>> matched;
  for (const RemovalsRequest::Count& count : message.matched) {
    matched.push_back(fb::CreateMatched(builder, count.number, count.objects));
  }
  const auto list = builder.CreateVector(matched);
  flatbuffers::Offset<flatbuffers::Vector<std::uint64_t>> open;
  if (!message.open.empty()) open = builder.CreateVector(message.open);
  flatbuffers::Offset<flatbuffers::Vector<std::uint16_t>> dropping;
  if (!message.dropping.empty()) dropping = builder.CreateVector(message.dropping);
  const std::uint64_t ahead = message.ahead > message.after ? message.ahead : 0;
  return Done(builder,
              fb::CreateRemovalsAfter(builder, message.number, message.epoch, message.after, list,
                                      message.dropped, ahead, open, dropping));
}

Result<RemovalsRequest> DecodeRemovalsRequest(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::RemovalsAfter>(body));
  RemovalsRequest request{.number = root->number(),
                          .epoch = root->epoch(),
                          .after = root->after(),
                          .matched = {},
                          .dropped = root->dropped(),
                          .ahead = root->ahead()};
  if (!Aligned(root->open()) || !Aligned(root->dropping(), 2)) return Misaligned();
  KVCOVE_ASSIGN(request.dropping, SlotsFrom(root->dropping()));
  if (SizeOf(root->open()) > kMaxOpenRemovals) {
    return Fail(Code::kCorrupt, "more removals are open than an owner may have");
  }
  for (unsigned i = 0; i < SizeOf(root->open()); ++i) request.open.push_back(root->open()->Get(i));
  for (unsigned i = 0; i < SizeOf(root->matched()); ++i) {
    const fb::Matched* count = root->matched()->Get(i);
    request.matched.push_back({.number = count->number(), .objects = count->count()});
  }
  return request;
}

flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<fb::Removal>>> AddRemovals(
    Builder& builder, const std::vector<Removal>& removals) {
  std::vector<flatbuffers::Offset<fb::Removal>> list;
  for (const Removal& removal : removals) {
    const auto keys = TextsOf(builder, removal.keys);
    const auto pattern = Text(builder, removal.pattern);
    list.push_back(fb::CreateRemoval(builder, removal.number, removal.slot, removal.generation,
                                     keys, pattern));
  }
  return builder.CreateVector(list);
}

Result<std::vector<Removal>> RemovalsFrom(
    const flatbuffers::Vector<flatbuffers::Offset<fb::Removal>>* list) {
  std::vector<Removal> removals;
  for (unsigned i = 0; i < SizeOf(list); ++i) {
    const fb::Removal* from = list->Get(i);
    if (from->slot() >= kMaxSlots) return Fail(Code::kCorrupt, "an unknown slot");
    Removal removal{.number = from->number(),
                    .slot = from->slot(),
                    .generation = from->generation(),
                    .keys = {},
                    .pattern = Str(from->pattern())};
    for (unsigned k = 0; k < SizeOf(from->keys()); ++k) {
      removal.keys.push_back(Str(from->keys()->Get(k)));
    }
    removals.push_back(std::move(removal));
  }
  return removals;
}

std::string Encode(const RemovalsPage& message) {
  Builder builder;
  const auto list = AddRemovals(builder, message.removals);
  const auto drop = builder.CreateVector(message.drop);
  return Done(builder, fb::CreateRemovalsPage(builder, drop, list, message.upto, message.more,
                                              message.drop_number, message.takes_dropping));
}

Result<RemovalsPage> DecodeRemovalsPage(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::RemovalsPage>(body));
  if (!Aligned(root->drop(), 2)) return Misaligned();
  RemovalsPage page{.drop = {},
                    .drop_number = root->drop_number(),
                    .removals = {},
                    .upto = root->upto(),
                    .more = root->more(),
                    .takes_dropping = root->takes_dropping()};
  KVCOVE_ASSIGN(page.drop, SlotsFrom(root->drop()));
  KVCOVE_ASSIGN(page.removals, RemovalsFrom(root->removals()));
  return page;
}

std::string Encode(const ListRequest& message) {
  const std::size_t count = message.items.size();
  Builder builder(count * 64 + 256);
  const auto column = [&](auto of) {
    std::vector<decltype(of(message.items.front()))> values;
    values.reserve(count);
    for (const ListItem& item : message.items) values.push_back(of(item));
    return values;
  };
  const auto hashes =
      builder.CreateVectorOfStructs(column([](const ListItem& item) { return ToFb(item.hash); }));
  const auto generations =
      builder.CreateVector(column([](const ListItem& item) { return item.generation; }));
  const auto sizes =
      builder.CreateVector(column([](const ListItem& item) { return item.size_bytes; }));
  const auto groups = builder.CreateVector(column([](const ListItem& item) { return item.group; }));
  const auto slots = builder.CreateVector(column([](const ListItem& item) { return item.slot; }));
  const auto flags = builder.CreateVector(column([](const ListItem& item) {
    return static_cast<std::uint8_t>((item.gone ? kGoneFlag : 0) |
                                     (item.inventory ? kInventoryFlag : 0) |
                                     (item.returns ? kReturnsFlag : 0));
  }));
  const auto copies =
      builder.CreateVector(column([](const ListItem& item) { return item.copies; }));
  const auto tiers = builder.CreateVector(
      column([](const ListItem& item) { return static_cast<std::uint8_t>(item.tier); }));
  const auto removals =
      builder.CreateVector(column([](const ListItem& item) { return item.removals; }));
  const auto copied_at =
      builder.CreateVector(column([](const ListItem& item) { return item.copied_at; }));
  return Done(builder,
              fb::CreateList(builder, message.number, message.epoch, message.sequence, hashes,
                             generations, sizes, groups, slots, flags, copies, tiers, removals,
                             copied_at, message.applied, message.session));
}

Result<ListRequest> DecodeList(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::List>(body));
  const std::size_t count = SizeOf(root->hashes());
  if (SizeOf(root->generations()) != count || SizeOf(root->sizes()) != count ||
      SizeOf(root->groups()) != count || SizeOf(root->slots()) != count ||
      SizeOf(root->flags()) != count || SizeOf(root->copies()) != count ||
      SizeOf(root->tiers()) != count || SizeOf(root->removals()) != count ||
      SizeOf(root->copied_at()) != count || count > kMaxBatch) {
    return WrongCount();
  }
  if (!Aligned(root->hashes()) || !Aligned(root->generations()) || !Aligned(root->sizes(), 4) ||
      !Aligned(root->groups(), 4) || !Aligned(root->slots(), 2) || !Aligned(root->removals()) ||
      !Aligned(root->copied_at())) {
    return Misaligned();
  }
  ListRequest request{.number = root->number(),
                      .epoch = root->epoch(),
                      .sequence = root->sequence(),
                      .applied = root->applied(),
                      .session = root->session(),
                      .items = {}};
  request.items.reserve(count);
  for (unsigned i = 0; i < count; ++i) {
    if (root->slots()->Get(i) >= kMaxSlots) return Fail(Code::kCorrupt, "an unknown slot");
    if (root->tiers()->Get(i) >= kTiers) return Fail(Code::kCorrupt, "an unknown tier");
    request.items.push_back({.hash = FromFb(root->hashes()->Get(i)),
                             .generation = root->generations()->Get(i),
                             .size_bytes = root->sizes()->Get(i),
                             .group = root->groups()->Get(i),
                             .slot = root->slots()->Get(i),
                             .gone = (root->flags()->Get(i) & kGoneFlag) != 0,
                             .inventory = (root->flags()->Get(i) & kInventoryFlag) != 0,
                             .returns = (root->flags()->Get(i) & kReturnsFlag) != 0,
                             .copies = root->copies()->Get(i),
                             .tier = static_cast<Tier>(root->tiers()->Get(i)),
                             .removals = root->removals()->Get(i),
                             .copied_at = root->copied_at()->Get(i)});
  }
  return request;
}

std::string Encode(const ListReply& message) {
  Builder builder(message.codes.size() + 256);
  std::vector<std::uint8_t> codes;
  codes.reserve(message.codes.size());
  for (const Code code : message.codes) codes.push_back(static_cast<std::uint8_t>(code));
  const auto list = builder.CreateVector(codes);
  return Done(builder, fb::CreateListReply(builder, list, message.credit));
}

Result<ListReply> DecodeListReply(std::span<const std::byte> body, std::size_t expected) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::ListReply>(body));
  if (SizeOf(root->codes()) != expected) return WrongCount();
  ListReply reply{.codes = {}, .credit = root->credit()};
  reply.codes.reserve(expected);
  for (unsigned i = 0; i < expected; ++i) {
    KVCOVE_ASSIGN(const Code code, ToCode(root->codes()->Get(i)));
    reply.codes.push_back(code);
  }
  return reply;
}

}  // namespace kvcove::wire
