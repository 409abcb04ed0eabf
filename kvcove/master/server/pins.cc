// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/pins.h"

#include <fmt/core.h>

namespace kvcove::master {
namespace {

constexpr std::uint32_t kPinPage = 512;  // keys of one call

Status PinKeys(const PinTarget& owner, const Token& token,
               const std::vector<std::string_view>& keys, PinCounts& counts) {
  if (keys.empty()) return {};
  KVCOVE_ASSIGN(const std::vector<Code> codes, owner.pin(token, keys));
  for (const Code code : codes) {
    if (code == Code::kOk) ++counts.done;
    if (code == Code::kLimit) ++counts.refused;
    if (code == Code::kTimeout) return Fail(code, "not all keys were looked at in time");
  }
  return {};
}

Status PinInSlot(const PinTarget& owner, const Token& token, const PinRequest& request,
                 PinCounts& counts) {
  if (!request.key.empty()) return PinKeys(owner, token, {request.key}, counts);
  wire::InventoryRequest page{
      .at_most = kPinPage, .slot = token.slot, .prefix = request.prefix, .with_keys = true};
  while (page.cursor != wire::kInventoryDone) {
    KVCOVE_ASSIGN(const wire::InventoryReply got, owner.page(page));
    std::vector<std::string_view> keys;
    for (const wire::HeldObject& object : got.objects) keys.push_back(object.key);
    KVCOVE_TRY(PinKeys(owner, token, keys, counts));
    page.cursor = got.cursor;
  }
  return {};
}

}  // namespace

Result<PinCounts> PinAt(const PinTarget& owner, std::string_view address, const Id128& incarnation,
                        const PinRequest& request) {
  PinCounts counts;
  for (const SlotDescription& slot : request.slots) {
    const Status pinned = PinInSlot(
        owner, {.incarnation = incarnation, .generation = slot.generation, .slot = slot.slot},
        request, counts);
    if (!pinned) {
      return Fail(pinned.error().code, fmt::format("owner {}: {}", address, pinned.error().detail));
    }
  }
  return counts;
}

}  // namespace kvcove::master
