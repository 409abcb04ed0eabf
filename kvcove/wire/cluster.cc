// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/cluster.h"

#include <cstring>

#include "kvcove/wire/cluster_flat.h"

namespace kvcove::wire {
namespace {

namespace fb = cluster;

Result<MissReason> ToReason(std::uint8_t value) {
  if (value >= kMissReasons) return Fail(Code::kCorrupt, "a reply with an unknown reason");
  return static_cast<MissReason>(value);
}
Result<Code> ToCode(std::uint8_t value) {
  if (value > kMaxCode) return Fail(Code::kCorrupt, "a reply with an unknown code");
  return static_cast<Code>(value);
}

flatbuffers::Offset<fb::Changes> Add(Builder& builder, const Changes& message) {
  std::vector<flatbuffers::Offset<fb::SlotChange>> slots;
  for (const SlotUpdate& slot : message.slots) {
    const auto name = Text(builder, slot.name);
    slots.push_back(fb::CreateSlotChange(builder, slot.slot, slot.generation, name, slot.named));
  }
  std::vector<flatbuffers::Offset<fb::Removal>> removals;
  for (const Removal& removal : message.removals) {
    const auto keys = TextsOf(builder, removal.keys);
    const auto pattern = Text(builder, removal.pattern);
    removals.push_back(fb::CreateRemoval(builder, removal.slot, keys, pattern, removal.drop_all));
  }
  const auto slot_list = builder.CreateVector(slots);
  const auto removal_list = builder.CreateVector(removals);
  const fb::Id incarnation = ToFb(message.incarnation);
  return fb::CreateChanges(builder, message.version, &incarnation, message.complete, slot_list,
                           removal_list);
}

Result<Changes> From(const fb::Changes* root) {
  if (root == nullptr) return Fail(Code::kCorrupt, "a message without changes");
  Changes changes{.version = root->version(),
                  .incarnation = FromFb(root->incarnation()),
                  .complete = root->complete(),
                  .slots = {},
                  .removals = {}};
  for (unsigned i = 0; i < SizeOf(root->slots()); ++i) {
    const fb::SlotChange* slot = root->slots()->Get(i);
    if (slot->slot() >= kMaxSlots) return Fail(Code::kCorrupt, "an unknown slot");
    changes.slots.push_back({.slot = slot->slot(),
                             .generation = slot->generation(),
                             .name = Str(slot->name()),
                             .named = slot->named()});
  }
  for (unsigned i = 0; i < SizeOf(root->removals()); ++i) {
    const fb::Removal* from = root->removals()->Get(i);
    if (from->slot() >= kMaxSlots) return Fail(Code::kCorrupt, "an unknown slot");
    Removal removal{.slot = from->slot(),
                    .keys = {},
                    .pattern = Str(from->pattern()),
                    .drop_all = from->drop_all()};
    for (unsigned k = 0; k < SizeOf(from->keys()); ++k) {
      removal.keys.push_back(Str(from->keys()->Get(k)));
    }
    changes.removals.push_back(std::move(removal));
  }
  return changes;
}

}  // namespace

std::string Encode(const OwnerHello& message) {
  Builder builder;
  const auto address = Text(builder, message.address);
  const auto socket = Text(builder, message.socket);
  const auto host = Text(builder, message.host);
  const auto tenant = Text(builder, message.tenant);
  const fb::Id owner = ToFb(message.owner);
  const fb::Id incarnation = ToFb(message.incarnation);
  return Done(builder,
              fb::CreateOwnerHello(builder, &owner, address, socket, host, message.capacity_bytes,
                                   message.term, &incarnation, tenant));
}

Result<OwnerHello> DecodeOwnerHello(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::OwnerHello>(body));
  return OwnerHello{.owner = FromFb(root->owner()),
                    .address = Str(root->address()),
                    .socket = Str(root->socket()),
                    .host = Str(root->host()),
                    .capacity_bytes = root->capacity_bytes(),
                    .tenant = Str(root->tenant()),
                    .term = root->term(),
                    .incarnation = FromFb(root->incarnation())};
}

std::string Encode(const OwnerWelcome& message) {
  Builder builder;
  const fb::Id incarnation = ToFb(message.incarnation);
  return Done(builder, fb::CreateOwnerWelcome(builder, message.number, message.epoch, message.term,
                                              &incarnation, message.lease_ns));
}

Result<OwnerWelcome> DecodeOwnerWelcome(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::OwnerWelcome>(body));
  return OwnerWelcome{.number = root->number(),
                      .epoch = root->epoch(),
                      .term = root->term(),
                      .incarnation = FromFb(root->incarnation()),
                      .lease_ns = root->lease_ns()};
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
  return Done(builder, fb::CreateRenew(builder, message.number, message.epoch, message.applied,
                                       message.free_bytes, message.inventory_done, message.objects,
                                       message.hits, message.evictions, message.stale_puts,
                                       message.puts, message.removed));
}

Result<RenewRequest> DecodeRenew(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Renew>(body));
  return RenewRequest{.number = root->number(),
                      .epoch = root->epoch(),
                      .applied = root->applied(),
                      .free_bytes = root->free_bytes(),
                      .inventory_done = root->inventory_done(),
                      .objects = root->objects(),
                      .hits = root->hits(),
                      .evictions = root->evictions(),
                      .stale_puts = root->stale_puts(),
                      .puts = root->puts(),
                      .removed = root->removed()};
}

std::string Encode(const RenewReply& message) {
  Builder builder;
  const auto changes = Add(builder, message.changes);
  return Done(builder, fb::CreateRenewReply(builder, message.granted, message.lease_ns, changes,
                                            message.draining));
}

Result<RenewReply> DecodeRenewReply(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::RenewReply>(body));
  KVCOVE_ASSIGN(Changes changes, From(root->changes()));
  return RenewReply{.granted = root->granted(),
                    .lease_ns = root->lease_ns(),
                    .changes = std::move(changes),
                    .draining = root->draining()};
}

std::string Encode(const ListRequest& message) {
  std::vector<fb::ListItem> items;
  items.reserve(message.items.size());
  for (const ListItem& item : message.items) {
    items.emplace_back(ToFb(item.hash), item.generation, item.size_bytes, item.group, item.slot,
                       item.gone ? 1 : 0, item.copies, item.copied_at);
  }
  Builder builder(items.size() * sizeof(fb::ListItem) + 256);
  const auto list = builder.CreateVectorOfStructs(items);
  return Done(builder,
              fb::CreateList(builder, message.number, message.epoch, message.applied, list));
}

Result<ListRequest> DecodeList(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::List>(body));
  if (!Aligned(root->items())) return Fail(Code::kCorrupt, "a message that is not aligned");
  ListRequest request{
      .number = root->number(), .epoch = root->epoch(), .applied = root->applied(), .items = {}};
  request.items.reserve(SizeOf(root->items()));
  for (unsigned i = 0; i < SizeOf(root->items()); ++i) {
    const fb::ListItem* item = root->items()->Get(i);
    if (item->slot() >= kMaxSlots) return Fail(Code::kCorrupt, "an unknown slot");
    request.items.push_back({.hash = FromFb(&item->hash()),
                             .generation = item->generation(),
                             .size_bytes = item->size_bytes(),
                             .group = item->group(),
                             .slot = item->slot(),
                             .gone = item->gone() != 0,
                             .copies = item->copies(),
                             .copied_at = item->copied_at()});
  }
  return request;
}

std::string EncodeLookup(const Token& token, std::span<const Id128> hashes) {
  static_assert(sizeof(fb::Id) == sizeof(Id128));
  Builder builder(hashes.size() * sizeof(fb::Id) + 256);
  std::vector<fb::Id> ids;
  ids.reserve(hashes.size());
  for (const Id128& hash : hashes) ids.push_back(ToFb(hash));
  const auto list = builder.CreateVectorOfStructs(ids);
  const fb::Token value = ToFb(token);
  return Done(builder, fb::CreateLookup(builder, &value, list));
}

Result<LookupRequest> DecodeLookup(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Lookup>(body));
  if (!Aligned(root->hashes())) return Fail(Code::kCorrupt, "a message that is not aligned");
  LookupRequest request{.token = FromFb(root->token()), .hashes = {}};
  if (SizeOf(root->hashes()) > kMaxBatch) return Fail(Code::kCorrupt, "a batch that is too large");
  request.hashes.reserve(SizeOf(root->hashes()));
  for (unsigned i = 0; i < SizeOf(root->hashes()); ++i) {
    request.hashes.push_back(FromFb(root->hashes()->Get(i)));
  }
  return request;
}

std::string Encode(std::span<const Place> places) {
  std::vector<fb::Place> list;
  list.reserve(places.size());
  for (const Place& place : places) {
    list.emplace_back(place.size_bytes, place.owner, place.second,
                      static_cast<std::uint8_t>(place.reason));
  }
  Builder builder(list.size() * sizeof(fb::Place) + 256);
  const auto vector = builder.CreateVectorOfStructs(list);
  return Done(builder, fb::CreateLookupReply(builder, vector));
}

Result<std::vector<Place>> DecodePlaces(std::span<const std::byte> body, std::size_t expected) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::LookupReply>(body));
  if (SizeOf(root->places()) != expected) return WrongCount();
  if (!Aligned(root->places(), 4)) return Fail(Code::kCorrupt, "a message that is not aligned");
  std::vector<Place> places;
  places.reserve(expected);
  for (unsigned i = 0; i < expected; ++i) {
    const fb::Place* place = root->places()->Get(i);
    KVCOVE_ASSIGN(const MissReason reason, ToReason(place->reason()));
    places.push_back({.size_bytes = place->size_bytes(),
                      .owner = place->owner(),
                      .second = place->second(),
                      .reason = reason});
  }
  return places;
}

std::string Encode(std::span<const OwnerStat> owners) {
  Builder builder;
  std::vector<flatbuffers::Offset<fb::Owner>> list;
  for (const OwnerStat& owner : owners) {
    const auto address = Text(builder, owner.address);
    const auto socket = Text(builder, owner.socket);
    const auto host = Text(builder, owner.host);
    const auto tenant = Text(builder, owner.tenant);
    list.push_back(fb::CreateOwner(builder, owner.number, owner.epoch, address, socket, host,
                                   owner.capacity_bytes, owner.free_bytes, owner.live,
                                   owner.objects, owner.lease_age_ns, tenant, owner.draining,
                                   owner.hits, owner.evictions, owner.stale_puts, owner.puts));
  }
  const auto vector = builder.CreateVector(list);
  return Done(builder, fb::CreateOwners(builder, vector));
}

Result<std::vector<OwnerStat>> DecodeOwners(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Owners>(body));
  std::vector<OwnerStat> owners;
  for (unsigned i = 0; i < SizeOf(root->owners()); ++i) {
    const fb::Owner* owner = root->owners()->Get(i);
    owners.push_back({.number = owner->number(),
                      .epoch = owner->epoch(),
                      .address = Str(owner->address()),
                      .socket = Str(owner->socket()),
                      .host = Str(owner->host()),
                      .capacity_bytes = owner->capacity_bytes(),
                      .free_bytes = owner->free_bytes(),
                      .live = owner->live(),
                      .objects = owner->objects(),
                      .lease_age_ns = owner->lease_age_ns(),
                      .tenant = Str(owner->tenant()),
                      .draining = owner->draining(),
                      .hits = owner->hits(),
                      .evictions = owner->evictions(),
                      .stale_puts = owner->stale_puts(),
                      .puts = owner->puts()});
  }
  return owners;
}

std::string Encode(const RemoveRequest& message) {
  Builder builder;
  const auto keys = TextsOf(builder, message.keys);
  const auto pattern = Text(builder, message.pattern);
  return Done(builder,
              fb::CreateRemoveKeys(builder, message.slot, keys, pattern, message.budget_ns));
}

Result<RemoveRequest> DecodeRemove(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::RemoveKeys>(body));
  if (root->slot() >= kMaxSlots) return Fail(Code::kCorrupt, "an unknown slot");
  RemoveRequest request{.slot = root->slot(),
                        .keys = {},
                        .pattern = Str(root->pattern()),
                        .budget_ns = root->budget_ns()};
  for (unsigned i = 0; i < SizeOf(root->keys()); ++i) {
    request.keys.push_back(Str(root->keys()->Get(i)));
  }
  return request;
}

std::string Encode(const DataGet& message) {
  Builder builder;
  const auto keys = TextsOf(builder, message.keys);
  const auto room = builder.CreateVector(message.room);
  const fb::Token token = ToFb(message.token);
  return Done(builder, fb::CreateDataGet(builder, &token, keys, room, message.no_checksum));
}

Result<DataGet> DecodeDataGet(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::DataGet>(body));
  const std::size_t count = SizeOf(root->keys());
  if (SizeOf(root->room()) != count) return WrongCount();
  if (!Aligned(root->room())) return Fail(Code::kCorrupt, "a message that is not aligned");
  DataGet request{
      .token = FromFb(root->token()), .keys = {}, .room = {}, .no_checksum = root->no_checksum()};
  request.keys.reserve(count);
  request.room.reserve(count);
  for (unsigned i = 0; i < count; ++i) {
    request.keys.push_back(View(root->keys()->Get(i)));
    request.room.push_back(root->room()->Get(i));
  }
  return request;
}

std::string Encode(std::span<const DataValue> values) {
  std::vector<fb::Value> list;
  list.reserve(values.size());
  for (const DataValue& value : values) {
    list.emplace_back(value.checksum, value.size_bytes, static_cast<std::uint8_t>(value.code),
                      static_cast<std::uint8_t>(value.reason));
  }
  Builder builder(list.size() * sizeof(fb::Value) + 256);
  const auto vector = builder.CreateVectorOfStructs(list);
  return Done(builder, fb::CreateDataGetReply(builder, vector));
}

Result<std::vector<DataValue>> DecodeValues(std::span<const std::byte> body, std::size_t expected) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::DataGetReply>(body));
  if (SizeOf(root->values()) != expected) return WrongCount();
  if (!Aligned(root->values())) return Fail(Code::kCorrupt, "a message that is not aligned");
  std::vector<DataValue> values;
  values.reserve(expected);
  for (unsigned i = 0; i < expected; ++i) {
    const fb::Value* value = root->values()->Get(i);
    KVCOVE_ASSIGN(const Code code, ToCode(value->code()));
    KVCOVE_ASSIGN(const MissReason reason, ToReason(value->reason()));
    values.push_back({.code = code,
                      .reason = reason,
                      .size_bytes = value->size_bytes(),
                      .checksum = value->checksum()});
  }
  return values;
}

std::string Encode(const DataPut& message) {
  std::size_t bytes = 256;
  for (const DataPutItem& item : message.items) bytes += item.key.size() + item.after.size() + 64;
  Builder builder(bytes);
  std::vector<flatbuffers::Offset<flatbuffers::String>> keys;
  std::vector<flatbuffers::Offset<flatbuffers::String>> afters;
  std::vector<fb::PutHead> heads;
  for (const DataPutItem& item : message.items) {
    keys.push_back(Text(builder, item.key));
    afters.push_back(builder.CreateSharedString(item.after.data(), item.after.size()));
    heads.emplace_back(item.checksum, item.size_bytes, item.group);
  }
  const auto key_list = builder.CreateVector(keys);
  const auto head_list = builder.CreateVectorOfStructs(heads);
  const auto after_list = builder.CreateVector(afters);
  const fb::Token token = ToFb(message.token);
  return Done(builder, fb::CreateDataPut(builder, &token, key_list, head_list, after_list,
                                         message.no_checksum, message.budget_ms, message.copies,
                                         message.no_evict, message.copied_at));
}

Result<DataPut> DecodeDataPut(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::DataPut>(body));
  const std::size_t count = SizeOf(root->keys());
  if (SizeOf(root->heads()) != count || SizeOf(root->afters()) != count) return WrongCount();
  if (!Aligned(root->heads())) return Fail(Code::kCorrupt, "a message that is not aligned");
  DataPut request{.token = FromFb(root->token()),
                  .items = {},
                  .no_checksum = root->no_checksum(),
                  .budget_ms = root->budget_ms(),
                  .copies = root->copies(),
                  .no_evict = root->no_evict(),
                  .copied_at = root->copied_at()};
  request.items.reserve(count);
  for (unsigned i = 0; i < count; ++i) {
    const fb::PutHead* head = root->heads()->Get(i);
    request.items.push_back({.key = View(root->keys()->Get(i)),
                             .after = View(root->afters()->Get(i)),
                             .size_bytes = head->size_bytes(),
                             .checksum = head->checksum(),
                             .group = head->group()});
  }
  return request;
}

std::string Encode(std::span<const Code> codes) {
  std::vector<std::uint8_t> numbers;
  numbers.reserve(codes.size());
  for (const Code code : codes) numbers.push_back(static_cast<std::uint8_t>(code));
  Builder builder;
  const auto list = builder.CreateVector(numbers);
  return Done(builder, fb::CreateCodes(builder, list));
}

Result<std::vector<Code>> DecodeCodes(std::span<const std::byte> body, std::size_t expected) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Codes>(body));
  if (SizeOf(root->codes()) != expected) return WrongCount();
  std::vector<Code> codes;
  codes.reserve(expected);
  for (unsigned i = 0; i < expected; ++i) {
    KVCOVE_ASSIGN(const Code code, ToCode(root->codes()->Get(i)));
    codes.push_back(code);
  }
  return codes;
}

std::string EncodeCount(std::uint64_t count) {
  return {reinterpret_cast<const char*>(&count), sizeof(count)};
}

Result<std::uint64_t> DecodeCount(std::span<const std::byte> body) {
  std::uint64_t count = 0;
  if (body.size() != sizeof(count)) return Fail(Code::kCorrupt, "a count of the wrong length");
  std::memcpy(&count, body.data(), sizeof(count));
  return count;
}

std::string Encode(const RequesterReport& message) {
  Builder builder;
  const auto misses = builder.CreateVector(message.misses.data(), message.misses.size());
  const auto broken = builder.CreateVector(message.broken);
  std::vector<fb::RecentMiss> list;
  for (const RequesterReport::Miss& miss : message.recent) {
    list.emplace_back(ToFb(miss.hash), miss.slot, static_cast<std::uint8_t>(miss.reason));
  }
  const auto recent = builder.CreateVectorOfStructs(list);
  return Done(builder, fb::CreateReport(builder, misses, message.fallbacks, broken, recent));
}

Result<RequesterReport> DecodeReport(std::span<const std::byte> body) {
  RequesterReport report;
  if (body.empty()) return report;
  KVCOVE_ASSIGN(const auto* root, Root<fb::Report>(body));
  if (!Aligned(root->misses()) || !Aligned(root->broken(), 2) || !Aligned(root->recent())) {
    return Fail(Code::kCorrupt, "a message that is not aligned");
  }
  for (unsigned i = 0; i < std::min(SizeOf(root->misses()), report.misses.size()); ++i) {
    report.misses[i] = root->misses()->Get(i);
  }
  report.fallbacks = root->fallbacks();
  for (unsigned i = 0; i < SizeOf(root->broken()); ++i) {
    report.broken.push_back(root->broken()->Get(i));
  }
  for (unsigned i = 0; i < SizeOf(root->recent()); ++i) {
    const fb::RecentMiss* miss = root->recent()->Get(i);
    KVCOVE_ASSIGN(const MissReason reason, ToReason(miss->reason()));
    if (miss->slot() >= kMaxSlots) return Fail(Code::kCorrupt, "an unknown slot");
    report.recent.push_back(
        {.hash = FromFb(&miss->hash()), .slot = miss->slot(), .reason = reason});
  }
  return report;
}

}  // namespace kvcove::wire
