// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/tasks.h"

#include <algorithm>

#include "kvcove/wire/cluster_flat.h"

namespace kvcove::wire {

std::string Encode(const InventoryRequest& message) {
  Builder builder;
  const auto prefix = Text(builder, message.prefix);
  return Done(builder, fb::CreateInventory(builder, message.cursor, message.at_most,
                                           !message.slot.has_value(), message.slot.value_or(0),
                                           prefix, message.with_keys, message.replicated_only,
                                           message.disks, message.within, message.since));
}

Result<InventoryRequest> DecodeInventory(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Inventory>(body));
  if (root->slot() >= kMaxSlots) return Fail(Code::kCorrupt, "an unknown slot");
  InventoryRequest request{.cursor = root->cursor(),
                           .at_most = root->at_most(),
                           .slot = std::nullopt,
                           .prefix = Str(root->prefix()),
                           .with_keys = root->with_keys(),
                           .replicated_only = root->replicated_only(),
                           .disks = root->disks(),
                           .within = root->within(),
                           .since = root->since()};
  if (!root->any_slot()) request.slot = root->slot();
  return request;
}

std::string Encode(const InventoryReply& message) {
  Builder builder(message.objects.size() * 128 + 256);
  const auto column = [&](auto of) {
    std::vector<decltype(of(message.objects.front()))> values;
    values.reserve(message.objects.size());
    for (const HeldObject& object : message.objects) values.push_back(of(object));
    return values;
  };
  const auto hashes = builder.CreateVectorOfStructs(
      column([](const HeldObject& object) { return ToFb(object.hash); }));
  const auto generations =
      builder.CreateVector(column([](const HeldObject& object) { return object.generation; }));
  const auto versions =
      builder.CreateVector(column([](const HeldObject& object) { return object.version; }));
  const auto ids = builder.CreateVector(column([](const HeldObject& object) { return object.id; }));
  const auto sizes =
      builder.CreateVector(column([](const HeldObject& object) { return object.size_bytes; }));
  const auto slots =
      builder.CreateVector(column([](const HeldObject& object) { return object.slot; }));
  const auto copies =
      builder.CreateVector(column([](const HeldObject& object) { return object.copies; }));
  const auto states = builder.CreateVector(column([](const HeldObject& object) {
    return static_cast<std::uint8_t>((object.soft_pinned ? 1 : 0) | (object.held ? 2 : 0) |
                                     (object.hard_pinned ? 4 : 0) | (object.on_disk ? 8 : 0));
  }));
  const auto tiers = builder.CreateVector(
      column([](const HeldObject& object) { return static_cast<std::uint8_t>(object.tier); }));
  std::vector<flatbuffers::Offset<flatbuffers::String>> keys;
  for (const HeldObject& object : message.objects) {
    keys.push_back(builder.CreateSharedString(object.key.data(), object.key.size()));
  }
  const auto key_list = builder.CreateVector(keys);
  return Done(builder, fb::CreateInventoryReply(
                           builder, message.cursor, hashes, generations, versions, ids, sizes,
                           slots, copies, states, tiers, key_list, message.generation, message.live,
                           message.voided, message.within, message.since, message.disks));
}

Result<InventoryReply> DecodeInventoryReply(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::InventoryReply>(body));
  const std::size_t count = SizeOf(root->hashes());
  if (SizeOf(root->generations()) != count || SizeOf(root->versions()) != count ||
      SizeOf(root->ids()) != count || SizeOf(root->sizes()) != count ||
      SizeOf(root->slots()) != count || SizeOf(root->copies()) != count ||
      SizeOf(root->states()) != count || SizeOf(root->tiers()) != count ||
      SizeOf(root->keys()) != count) {
    return WrongCount();
  }
  if (!Aligned(root->hashes()) || !Aligned(root->generations()) || !Aligned(root->versions()) ||
      !Aligned(root->ids(), 4) || !Aligned(root->sizes(), 4) || !Aligned(root->slots(), 2)) {
    return Misaligned();
  }
  InventoryReply reply{.cursor = root->cursor(),
                       .generation = root->generation(),
                       .live = root->live(),
                       .voided = root->voided(),
                       .within = root->within(),
                       .since = root->since(),
                       .disks = root->disks(),
                       .objects = {}};
  for (unsigned i = 0; i < count; ++i) {
    if (root->slots()->Get(i) >= kMaxSlots) return Fail(Code::kCorrupt, "an unknown slot");
    if (View(root->keys()->Get(i)).size() > kMaxKeyBytes) {
      return Fail(Code::kCorrupt, "a key that is too long");
    }
    const unsigned state = root->states()->Get(i);
    KVCOVE_ASSIGN(const Tier tier, ToTier(root->tiers()->Get(i)));
    reply.objects.push_back({.hash = FromFb(root->hashes()->Get(i)),
                             .generation = root->generations()->Get(i),
                             .version = root->versions()->Get(i),
                             .id = root->ids()->Get(i),
                             .size_bytes = root->sizes()->Get(i),
                             .slot = root->slots()->Get(i),
                             .copies = root->copies()->Get(i),
                             .hard_pinned = (state & 4U) != 0,
                             .soft_pinned = (state & 1U) != 0,
                             .held = (state & 2U) != 0,
                             .tier = tier,
                             .on_disk = (state & 8U) != 0,
                             .key = Str(root->keys()->Get(i))});
  }
  return reply;
}

namespace {

// Of the items of a copy that lie on a disk only; nothing where there is none.
struct OnDiskColumns {
  flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>> keys;
  flatbuffers::Offset<flatbuffers::Vector<std::uint16_t>> slots;
  flatbuffers::Offset<flatbuffers::Vector<std::uint64_t>> generations;
  flatbuffers::Offset<flatbuffers::Vector<std::uint32_t>> sizes;
};

OnDiskColumns ColumnsOf(Builder& builder, const std::vector<CopyRequest::Item>& items) {
  if (std::ranges::all_of(items, [](const auto& item) { return item.key.empty(); })) return {};
  std::vector<flatbuffers::Offset<flatbuffers::String>> keys;
  std::vector<std::uint16_t> slots;
  std::vector<std::uint64_t> generations;
  std::vector<std::uint32_t> sizes;
  for (const CopyRequest::Item& item : items) {
    keys.push_back(builder.CreateSharedString(item.key.data(), item.key.size()));
    slots.push_back(item.slot);
    generations.push_back(item.generation);
    sizes.push_back(item.size_bytes);
  }
  return {.keys = builder.CreateVector(keys),
          .slots = builder.CreateVector(slots),
          .generations = builder.CreateVector(generations),
          .sizes = builder.CreateVector(sizes)};
}

Status ReadColumns(const fb::Copy& root, std::vector<CopyRequest::Item>& items) {
  const std::size_t count = SizeOf(root.keys());
  if (count == 0) return {};
  // Strings may share their bytes: a few would become many when they are copied.
  if (count > kMaxPage) return Fail(Code::kCorrupt, "a copy of too many objects");
  if (count != items.size() || SizeOf(root.slots()) != count ||
      SizeOf(root.generations()) != count || SizeOf(root.sizes()) != count) {
    return WrongCount();
  }
  if (!Aligned(root.slots(), 2) || !Aligned(root.generations()) || !Aligned(root.sizes(), 4)) {
    return Misaligned();
  }
  for (unsigned i = 0; i < count; ++i) {
    CopyRequest::Item& item = items[i];
    if (root.slots()->Get(i) >= kMaxSlots) return Fail(Code::kCorrupt, "an unknown slot");
    if (View(root.keys()->Get(i)).size() > kMaxKeyBytes) {
      return Fail(Code::kCorrupt, "a key that is too long");
    }
    item.key = Str(root.keys()->Get(i));
    item.slot = root.slots()->Get(i);
    item.generation = root.generations()->Get(i);
    item.size_bytes = root.sizes()->Get(i);
  }
  return {};
}

}  // namespace

std::string Encode(const CopyRequest& message) {
  std::vector<std::uint32_t> ids;
  std::vector<std::uint64_t> versions;
  for (const CopyRequest::Item& item : message.items) {
    ids.push_back(item.id);
    versions.push_back(item.version);
  }
  Builder builder(message.items.size() * 12 + 256);
  const auto id_list = builder.CreateVector(ids);
  const auto version_list = builder.CreateVector(versions);
  const OnDiskColumns on_disk = ColumnsOf(builder, message.items);
  const auto to = Text(builder, message.to);
  return Done(builder,
              fb::CreateCopy(builder, to, message.move, id_list, version_list, message.budget_ms,
                             on_disk.keys, on_disk.slots, on_disk.generations, on_disk.sizes));
}

Result<CopyRequest> DecodeCopy(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Copy>(body));
  const std::size_t count = SizeOf(root->ids());
  if (SizeOf(root->versions()) != count) return WrongCount();
  if (!Aligned(root->ids(), 4) || !Aligned(root->versions())) return Misaligned();
  CopyRequest request{
      .to = Str(root->to()), .move = root->move(), .items = {}, .budget_ms = root->budget_ms()};
  for (unsigned i = 0; i < count; ++i) {
    request.items.push_back({.id = root->ids()->Get(i), .version = root->versions()->Get(i)});
  }
  KVCOVE_TRY(ReadColumns(*root, request.items));
  return request;
}

}  // namespace kvcove::wire
