// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/cluster.h"

#include <algorithm>
#include <cstring>

#include "kvcove/wire/cluster_flat.h"
#include "kvcove/wire/hints.h"
#include "kvcove/wire/shards_flat.h"

namespace kvcove::wire {
std::string EncodeLookup(const Token& token, std::span<const Id128> hashes, SaveNotice notice) {
  static_assert(sizeof(fb::Id) == sizeof(Id128));
  Builder builder(hashes.size() * sizeof(fb::Id) + 256);
  std::vector<fb::Id> ids;
  ids.reserve(hashes.size());
  for (const Id128& hash : hashes) ids.push_back(ToFb(hash));
  const auto list = builder.CreateVectorOfStructs(ids);
  const fb::Token value = ToFb(token);
  return Done(builder, fb::CreateLookup(builder, &value, list, static_cast<std::uint8_t>(notice)));
}

Result<LookupRequest> DecodeLookup(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Lookup>(body));
  if (!Aligned(root->hashes())) return Misaligned();
  LookupRequest request{.token = FromFb(root->token()), .hashes = {}};
  // A notice of a later build is none.
  if (root->notice() <= static_cast<std::uint8_t>(SaveNotice::kEnd)) {
    request.notice = static_cast<SaveNotice>(root->notice());
  }
  if (SizeOf(root->hashes()) > kMaxBatch) return Fail(Code::kCorrupt, "a batch that is too large");
  request.hashes.reserve(SizeOf(root->hashes()));
  for (unsigned i = 0; i < SizeOf(root->hashes()); ++i) {
    request.hashes.push_back(FromFb(root->hashes()->Get(i)));
  }
  return request;
}

std::string Encode(std::span<const Place> places) {
  Builder builder(places.size() * 16 + 256);
  const auto column = [&](auto of) {
    std::vector<decltype(of(places.front()))> values;
    values.reserve(places.size());
    for (const Place& place : places) values.push_back(of(place));
    return builder.CreateVector(values);
  };
  const auto sizes = column([](const Place& place) { return place.size_bytes; });
  const auto owners = column([](const Place& place) { return place.owner; });
  const auto seconds = column([](const Place& place) { return place.second; });
  const auto reasons =
      column([](const Place& place) { return static_cast<std::uint8_t>(place.reason); });
  const auto tiers =
      column([](const Place& place) { return static_cast<std::uint8_t>(place.tier); });
  flatbuffers::Offset<flatbuffers::Vector<std::uint8_t>> under_way;
  if (std::ranges::find(places, true, &Place::under_way) != places.end()) {
    under_way = column([](const Place& place) -> std::uint8_t { return place.under_way ? 1 : 0; });
  }
  return Done(builder,
              fb::CreateLookupReply(builder, sizes, owners, seconds, reasons, tiers, under_way));
}

Result<std::vector<Place>> DecodePlaces(std::span<const std::byte> body, std::size_t expected) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::LookupReply>(body));
  if (SizeOf(root->sizes()) != expected || SizeOf(root->owners()) != expected ||
      SizeOf(root->seconds()) != expected || SizeOf(root->reasons()) != expected ||
      SizeOf(root->tiers()) != expected) {
    return WrongCount();
  }
  if (!Aligned(root->sizes(), 4) || !Aligned(root->owners(), 2) || !Aligned(root->seconds(), 2)) {
    return Misaligned();
  }
  const std::size_t told = SizeOf(root->under_way());
  if (told != 0 && told != expected) return WrongCount();
  std::vector<Place> places;
  places.reserve(expected);
  for (unsigned i = 0; i < expected; ++i) {
    KVCOVE_ASSIGN(const MissReason reason, ToReason(root->reasons()->Get(i)));
    KVCOVE_ASSIGN(const Tier tier, ToTier(root->tiers()->Get(i)));
    places.push_back({.size_bytes = root->sizes()->Get(i),
                      .owner = root->owners()->Get(i),
                      .second = root->seconds()->Get(i),
                      .reason = reason,
                      .tier = tier,
                      .under_way = told != 0 && root->under_way()->Get(i) != 0});
  }
  return places;
}

std::string Encode(const PrefixShares& message) {
  Builder builder(message.owners.size() * sizeof(PrefixShare) + 256);
  const auto column = [&](auto PrefixShare::* of) {
    std::vector<std::remove_cvref_t<decltype(PrefixShare().*of)>> values;
    values.reserve(message.owners.size());
    for (const PrefixShare& share : message.owners) values.push_back(share.*of);
    return builder.CreateVector(values);
  };
  const auto owners = column(&PrefixShare::owner);
  const auto prefixes = column(&PrefixShare::prefix);
  const auto memory_prefixes = column(&PrefixShare::memory_prefix);
  const auto memory = column(&PrefixShare::memory);
  const auto disk = column(&PrefixShare::disk);
  return Done(builder, fb::CreateLocateReply(builder, message.keys,
                                             static_cast<std::uint8_t>(message.reason), owners,
                                             prefixes, memory_prefixes, memory, disk));
}

Result<PrefixShares> DecodePrefixShares(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::LocateReply>(body));
  const std::size_t count = SizeOf(root->owners());
  if (SizeOf(root->prefixes()) != count || SizeOf(root->memory_prefixes()) != count ||
      SizeOf(root->memory()) != count || SizeOf(root->disk()) != count) {
    return WrongCount();
  }
  if (!Aligned(root->owners(), 2) || !Aligned(root->prefixes(), 4) ||
      !Aligned(root->memory_prefixes(), 4) || !Aligned(root->memory(), 4) ||
      !Aligned(root->disk(), 4)) {
    return Misaligned();
  }
  PrefixShares shares{.keys = root->keys(), .owners = {}};
  KVCOVE_ASSIGN(shares.reason, ToReason(root->reason()));
  shares.owners.reserve(count);
  for (unsigned i = 0; i < count; ++i) {
    shares.owners.push_back({.owner = root->owners()->Get(i),
                             .prefix = root->prefixes()->Get(i),
                             .memory_prefix = root->memory_prefixes()->Get(i),
                             .memory = root->memory()->Get(i),
                             .disk = root->disk()->Get(i)});
  }
  return shares;
}

std::string Encode(const OwnersReply& message) {
  Builder builder;
  std::vector<flatbuffers::Offset<fb::Owner>> list;
  for (const OwnerStat& owner : message.owners) {
    const auto address = Text(builder, owner.address);
    const auto socket = Text(builder, owner.socket);
    const auto host = Text(builder, owner.host);
    const auto tenant = Text(builder, owner.tenant);
    list.push_back(fb::CreateOwner(
        builder, owner.number, owner.epoch, address, socket, host, owner.capacity_bytes,
        owner.free_bytes, owner.live, owner.objects, owner.lease_age_ns, tenant, owner.draining,
        owner.hits, owner.evictions, owner.stale_puts, owner.puts, owner.told, owner.disks,
        owner.disks_aside, owner.disk_capacity_bytes, owner.disk_bytes));
  }
  const auto vector = builder.CreateVector(list);
  const std::string& address = message.settings.admin;
  const auto admin =
      address.empty() ? flatbuffers::Offset<flatbuffers::String>() : Text(builder, address);
  const auto map = AddMap(builder, message.map);
  return Done(builder,
              fb::CreateOwners(builder, vector, message.term, message.settings.read_hold_ms, admin,
                               map, message.settings.scopes));
}

Result<OwnersReply> DecodeOwners(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Owners>(body));
  OwnersReply reply{.owners = {},
                    .term = root->term(),
                    .settings = {.read_hold_ms = root->read_hold_ms(),
                                 .admin = Str(root->admin()),
                                 .scopes = root->scopes()}};
  for (unsigned i = 0; i < SizeOf(root->owners()); ++i) {
    const fb::Owner* owner = root->owners()->Get(i);
    reply.owners.push_back({.number = owner->number(),
                            .epoch = owner->epoch(),
                            .address = Str(owner->address()),
                            .socket = Str(owner->socket()),
                            .host = Str(owner->host()),
                            .capacity_bytes = owner->capacity_bytes(),
                            .free_bytes = owner->free_bytes(),
                            .live = owner->live(),
                            .told = owner->told(),
                            .objects = owner->objects(),
                            .lease_age_ns = owner->lease_age_ns(),
                            .tenant = Str(owner->tenant()),
                            .draining = owner->draining(),
                            .hits = owner->hits(),
                            .evictions = owner->evictions(),
                            .stale_puts = owner->stale_puts(),
                            .puts = owner->puts(),
                            .disks = owner->disks(),
                            .disks_aside = owner->disks_aside(),
                            .disk_capacity_bytes = owner->disk_capacity_bytes(),
                            .disk_bytes = owner->disk_bytes()});
  }
  KVCOVE_ASSIGN(reply.map, MapFrom(root->map()));
  return reply;
}

std::string Encode(const RemoveRequest& message) {
  Builder builder;
  const auto keys = TextsOf(builder, message.keys);
  const auto pattern = Text(builder, message.pattern);
  const fb::Token token = ToFb(message.token);
  return Done(builder, fb::CreateRemoveKeys(builder, &token, keys, pattern, message.budget_ns));
}

Result<RemoveRequest> DecodeRemove(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::RemoveKeys>(body));
  KVCOVE_ASSIGN(const std::vector<std::string_view> keys, Views(root->keys(), body));
  return RemoveRequest{.token = FromFb(root->token()),
                       .keys = {keys.begin(), keys.end()},
                       .pattern = Str(root->pattern()),
                       .budget_ns = root->budget_ns()};
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
  if (!Aligned(root->room())) return Misaligned();
  DataGet request{
      .token = FromFb(root->token()), .keys = {}, .room = {}, .no_checksum = root->no_checksum()};
  KVCOVE_ASSIGN(request.keys, Views(root->keys(), body));
  request.room.reserve(count);
  for (unsigned i = 0; i < count; ++i) request.room.push_back(root->room()->Get(i));
  return request;
}

std::string Encode(std::span<const DataValue> values) {
  Builder builder(values.size() * 24 + 256);
  const auto column = [&](auto of) {
    std::vector<decltype(of(values.front()))> list;
    list.reserve(values.size());
    for (const DataValue& value : values) list.push_back(of(value));
    return builder.CreateVector(list);
  };
  const auto checksums = column([](const DataValue& value) { return value.checksum; });
  const auto sizes = column([](const DataValue& value) { return value.size_bytes; });
  const auto codes =
      column([](const DataValue& value) { return static_cast<std::uint8_t>(value.code); });
  const auto reasons =
      column([](const DataValue& value) { return static_cast<std::uint8_t>(value.reason); });
  const auto tiers =
      column([](const DataValue& value) { return static_cast<std::uint8_t>(value.tier); });
  return Done(builder, fb::CreateDataGetReply(builder, checksums, sizes, codes, reasons, tiers));
}

Result<std::vector<DataValue>> DecodeValues(std::span<const std::byte> body, std::size_t expected) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::DataGetReply>(body));
  if (SizeOf(root->checksums()) != expected || SizeOf(root->sizes()) != expected ||
      SizeOf(root->codes()) != expected || SizeOf(root->reasons()) != expected ||
      SizeOf(root->tiers()) != expected) {
    return WrongCount();
  }
  if (!Aligned(root->checksums()) || !Aligned(root->sizes(), 4)) return Misaligned();
  std::vector<DataValue> values;
  values.reserve(expected);
  for (unsigned i = 0; i < expected; ++i) {
    KVCOVE_ASSIGN(const Code code, ToCode(root->codes()->Get(i)));
    KVCOVE_ASSIGN(const MissReason reason, ToReason(root->reasons()->Get(i)));
    KVCOVE_ASSIGN(const Tier tier, ToTier(root->tiers()->Get(i)));
    values.push_back({.code = code,
                      .reason = reason,
                      .size_bytes = root->sizes()->Get(i),
                      .checksum = root->checksums()->Get(i),
                      .tier = tier});
  }
  return values;
}

std::string Encode(const DataPut& message) {
  std::size_t bytes = 256;
  for (const DataPutItem& item : message.items) bytes += item.key.size() + item.after.size() + 64;
  Builder builder(bytes);
  std::vector<flatbuffers::Offset<flatbuffers::String>> keys;
  std::vector<flatbuffers::Offset<flatbuffers::String>> afters;
  std::vector<std::uint64_t> checksums;
  std::vector<std::uint32_t> sizes;
  std::vector<std::uint32_t> groups;
  std::vector<std::uint8_t> hints;
  std::vector<std::uint32_t> outputs;
  bool hinted = false;
  for (const DataPutItem& item : message.items) {
    keys.push_back(Text(builder, item.key));
    afters.push_back(builder.CreateSharedString(item.after.data(), item.after.size()));
    checksums.push_back(item.checksum);
    sizes.push_back(item.size_bytes);
    groups.push_back(item.group);
    hinted = hinted || item.hints != Hints{};
    hints.push_back(FlagsOf(item.hints));
    outputs.push_back(item.hints.output_tokens);
  }
  const auto key_list = builder.CreateVector(keys);
  const auto checksum_list = builder.CreateVector(checksums);
  const auto size_list = builder.CreateVector(sizes);
  const auto group_list = builder.CreateVector(groups);
  const auto after_list = builder.CreateVector(afters);
  flatbuffers::Offset<flatbuffers::Vector<std::uint8_t>> hint_list;
  flatbuffers::Offset<flatbuffers::Vector<std::uint32_t>> output_list;
  if (hinted) {
    hint_list = builder.CreateVector(hints);
    output_list = builder.CreateVector(outputs);
  }
  const fb::Token token = ToFb(message.token);
  return Done(builder,
              fb::CreateDataPut(builder, &token, key_list, checksum_list, size_list, group_list,
                                after_list, message.no_checksum, message.budget_ms, message.copies,
                                message.no_evict, message.copied_at, hint_list, output_list));
}

Result<DataPut> DecodeDataPut(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::DataPut>(body));
  const std::size_t count = SizeOf(root->keys());
  if (SizeOf(root->checksums()) != count || SizeOf(root->sizes()) != count ||
      SizeOf(root->groups()) != count || SizeOf(root->afters()) != count) {
    return WrongCount();
  }
  // Older requesters send none.
  const bool hinted = SizeOf(root->hints()) != 0;
  if (SizeOf(root->output_tokens()) != SizeOf(root->hints()) ||
      (hinted && SizeOf(root->hints()) != count)) {
    return WrongCount();
  }
  if (count > kMaxBatch) return Fail(Code::kCorrupt, "a batch that is too large");
  if (!Aligned(root->checksums()) || !Aligned(root->sizes(), 4) || !Aligned(root->groups(), 4) ||
      (hinted && !Aligned(root->output_tokens(), 4))) {
    return Misaligned();
  }
  DataPut request{.token = FromFb(root->token()),
                  .items = {},
                  .no_checksum = root->no_checksum(),
                  .budget_ms = root->budget_ms(),
                  .copies = root->copies(),
                  .no_evict = root->no_evict(),
                  .copied_at = root->copied_at()};
  request.items.reserve(count);
  for (unsigned i = 0; i < count; ++i) {
    request.items.push_back(
        {.key = View(root->keys()->Get(i)),
         .after = View(root->afters()->Get(i)),
         .size_bytes = root->sizes()->Get(i),
         .checksum = root->checksums()->Get(i),
         .group = root->groups()->Get(i),
         .hints =
             hinted ? HintsOf(root->hints()->Get(i), root->output_tokens()->Get(i)) : Hints{}});
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
  std::vector<fb::Id> hashes;
  std::vector<std::uint16_t> slots;
  std::vector<std::uint8_t> reasons;
  for (const RequesterReport::Miss& miss : message.recent) {
    hashes.push_back(ToFb(miss.hash));
    slots.push_back(miss.slot);
    reasons.push_back(static_cast<std::uint8_t>(miss.reason));
  }
  const auto hash_list = builder.CreateVectorOfStructs(hashes);
  const auto slot_list = builder.CreateVector(slots);
  const auto reason_list = builder.CreateVector(reasons);
  const fb::Id holder = ToFb(message.holder);
  return Done(builder, fb::CreateReport(builder, misses, message.fallbacks, broken, hash_list,
                                        slot_list, reason_list, &holder));
}

Result<RequesterReport> DecodeReport(std::span<const std::byte> body) {
  RequesterReport report;
  if (body.empty()) return report;
  KVCOVE_ASSIGN(const auto* root, Root<fb::Report>(body));
  if (!Aligned(root->misses()) || !Aligned(root->broken(), 2) || !Aligned(root->recent_hashes()) ||
      !Aligned(root->recent_slots(), 2)) {
    return Misaligned();
  }
  const std::size_t recent = SizeOf(root->recent_hashes());
  if (SizeOf(root->recent_slots()) != recent || SizeOf(root->recent_reasons()) != recent) {
    return WrongCount();
  }
  report.holder = FromFb(root->holder());
  for (unsigned i = 0; i < std::min(SizeOf(root->misses()), report.misses.size()); ++i) {
    report.misses[i] = root->misses()->Get(i);
  }
  report.fallbacks = root->fallbacks();
  for (unsigned i = 0; i < SizeOf(root->broken()); ++i) {
    report.broken.push_back(root->broken()->Get(i));
  }
  for (unsigned i = 0; i < recent; ++i) {
    KVCOVE_ASSIGN(const MissReason reason, ToReason(root->recent_reasons()->Get(i)));
    const SlotId slot = root->recent_slots()->Get(i);
    if (slot >= kMaxSlots) return Fail(Code::kCorrupt, "an unknown slot");
    report.recent.push_back(
        {.hash = FromFb(root->recent_hashes()->Get(i)), .slot = slot, .reason = reason});
  }
  return report;
}

}  // namespace kvcove::wire
