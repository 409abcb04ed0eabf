// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/pins.h"

#include <fmt/core.h>

#include <string_view>

#include "kvcove/rpc/channel.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::master {
namespace {

constexpr std::uint32_t kPinPage = 512;  // keys of one call

// Pins at one owner.
class OwnerPins {
 public:
  OwnerPins(wire::ObjectService& owner, const PinRequest& request, std::int64_t deadline_ns,
            PinCounts& counts)
      : owner_(owner), request_(request), deadline_ns_(deadline_ns), counts_(counts) {}

  Status InSlot(const Token& token) {
    if (!request_.key.empty()) return Keys(token, {request_.key});
    wire::InventoryRequest page{
        .at_most = kPinPage, .slot = token.slot, .prefix = request_.prefix, .with_keys = true};
    while (page.cursor != wire::kInventoryDone) {
      KVCOVE_ASSIGN(const wire::InventoryReply got, owner_.Page(page, deadline_ns_));
      std::vector<std::string_view> keys;
      for (const wire::HeldObject& object : got.objects) keys.push_back(object.key);
      KVCOVE_TRY(Keys(token, keys));
      page.cursor = got.cursor;
    }
    return {};
  }

 private:
  Status Keys(const Token& token, const std::vector<std::string_view>& keys) {
    if (keys.empty()) return {};
    KVCOVE_ASSIGN(const std::vector<Code> codes,
                  owner_.Pin(token, keys, request_.kind, request_.duration_ns, deadline_ns_));
    for (const Code code : codes) {
      if (code == Code::kOk) ++counts_.done;
      if (code == Code::kLimit) ++counts_.refused;
      if (code == Code::kTimeout) return Fail(code, "not all keys were looked at in time");
    }
    return {};
  }

  wire::ObjectService& owner_;
  const PinRequest& request_;
  const std::int64_t deadline_ns_;
  PinCounts& counts_;
};

}  // namespace

Result<PinCounts> PinAtOwners(MasterServer& cluster, const PinRequest& request,
                              std::int64_t deadline_ns) {
  PinCounts counts;
  const Id128 incarnation = cluster.Stat().incarnation;
  for (const wire::OwnerStat& owner : cluster.Owners()) {
    if (!owner.live) continue;
    KVCOVE_ASSIGN(const rpc::Address address, rpc::ParseAddress(owner.address, 0));
    rpc::TcpChannel channel(address, cluster.AccessTo(owner.address));
    const auto stub = wire::MakeObjectStub(channel);
    OwnerPins pins(*stub, request, deadline_ns, counts);
    for (const SlotDescription& slot : request.slots) {
      const Status pinned = pins.InSlot(
          {.incarnation = incarnation, .generation = slot.generation, .slot = slot.slot});
      if (pinned) continue;
      return Fail(pinned.error().code,
                  fmt::format("owner {}: {}", owner.address, pinned.error().detail));
    }
  }
  return counts;
}

}  // namespace kvcove::master
