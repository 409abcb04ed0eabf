// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/tasks.h"

#include "kvcove/wire/cluster_flat.h"

namespace kvcove::wire {

std::string Encode(const InventoryRequest& message) {
  Builder builder;
  const auto prefix = Text(builder, message.prefix);
  return Done(builder, fb::CreateInventory(builder, message.cursor, message.at_most,
                                           !message.slot.has_value(), message.slot.value_or(0),
                                           prefix, message.with_keys, message.replicated_only));
}

Result<InventoryRequest> DecodeInventory(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Inventory>(body));
  if (root->slot() >= kMaxSlots) return Fail(Code::kCorrupt, "an unknown slot");
  InventoryRequest request{.cursor = root->cursor(),
                           .at_most = root->at_most(),
                           .slot = std::nullopt,
                           .prefix = Str(root->prefix()),
                           .with_keys = root->with_keys(),
                           .replicated_only = root->replicated_only()};
  if (!root->any_slot()) request.slot = root->slot();
  return request;
}

std::string Encode(const InventoryReply& message) {
  std::vector<fb::Held> items;
  std::vector<flatbuffers::Offset<flatbuffers::String>> keys;
  std::vector<std::uint8_t> states;
  Builder builder(message.objects.size() * 128 + 256);
  for (const HeldObject& object : message.objects) {
    items.emplace_back(ToFb(object.hash), object.generation, object.version, object.id,
                       object.size_bytes, object.slot, object.copies, object.hard_pinned);
    keys.push_back(builder.CreateSharedString(object.key.data(), object.key.size()));
    states.push_back(
        static_cast<std::uint8_t>((object.soft_pinned ? 1 : 0) | (object.held ? 2 : 0)));
  }
  const auto item_list = builder.CreateVectorOfStructs(items);
  const auto key_list = builder.CreateVector(keys);
  const auto state_list = builder.CreateVector(states);
  return Done(builder,
              fb::CreateInventoryReply(builder, message.cursor, item_list, key_list, state_list,
                                       message.generation, message.live, message.voided));
}

Result<InventoryReply> DecodeInventoryReply(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::InventoryReply>(body));
  if (!Aligned(root->items())) return Fail(Code::kCorrupt, "a message that is not aligned");
  if (SizeOf(root->items()) != SizeOf(root->keys())) return WrongCount();
  // Earlier versions do not tell the states.
  if (SizeOf(root->states()) != 0 && SizeOf(root->states()) != SizeOf(root->items())) {
    return WrongCount();
  }
  InventoryReply reply{.cursor = root->cursor(),
                       .generation = root->generation(),
                       .live = root->live(),
                       .voided = root->voided(),
                       .objects = {}};
  for (unsigned i = 0; i < SizeOf(root->items()); ++i) {
    const fb::Held* held = root->items()->Get(i);
    if (held->slot() >= kMaxSlots) return Fail(Code::kCorrupt, "an unknown slot");
    const unsigned state = SizeOf(root->states()) != 0 ? root->states()->Get(i) : 0U;
    reply.objects.push_back({.hash = FromFb(&held->hash()),
                             .generation = held->generation(),
                             .version = held->version(),
                             .id = held->id(),
                             .size_bytes = held->size_bytes(),
                             .slot = held->slot(),
                             .copies = held->copies(),
                             .hard_pinned = held->hard_pinned(),
                             .soft_pinned = (state & 1U) != 0,
                             .held = (state & 2U) != 0,
                             .key = Str(root->keys()->Get(i))});
  }
  return reply;
}

std::string Encode(const CopyRequest& message) {
  std::vector<fb::CopyItem> items;
  for (const CopyRequest::Item& item : message.items) items.emplace_back(item.version, item.id);
  Builder builder(items.size() * sizeof(fb::CopyItem) + 256);
  const auto list = builder.CreateVectorOfStructs(items);
  const auto to = Text(builder, message.to);
  return Done(builder, fb::CreateCopy(builder, to, message.move, list, message.budget_ms));
}

Result<CopyRequest> DecodeCopy(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::Copy>(body));
  if (!Aligned(root->items())) return Fail(Code::kCorrupt, "a message that is not aligned");
  CopyRequest request{
      .to = Str(root->to()), .move = root->move(), .items = {}, .budget_ms = root->budget_ms()};
  for (unsigned i = 0; i < SizeOf(root->items()); ++i) {
    const fb::CopyItem* item = root->items()->Get(i);
    request.items.push_back({.id = item->id(), .version = item->version()});
  }
  return request;
}

}  // namespace kvcove::wire
