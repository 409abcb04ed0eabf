// SPDX-License-Identifier: Apache-2.0
// Any bytes as any message between owners, requesters and the master. The first byte chooses.
// Fuzzes: kvcove/wire kvcove/rpc/address.cc
#include <cstring>
#include <vector>

#include "kvcove/rpc/address.h"
#include "kvcove/wire/auth.h"
#include "kvcove/wire/cluster.h"
#include "kvcove/wire/lanes.h"
#include "kvcove/wire/probe.h"
#include "kvcove/wire/shards.h"
#include "kvcove/wire/tasks.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvcove::wire;
  if (size == 0) return 0;
  // As in the servers, the body is aligned.
  std::vector<std::byte> body(size - 1);
  if (size > 1) std::memcpy(body.data(), data + 1, size - 1);
  switch (data[0] % 21) {
    case 0:
      return (void)DecodeOwnerHello(body), 0;
    case 1:
      return (void)DecodeOwnerWelcome(body), 0;
    case 2:
      return (void)DecodeChanges(body), 0;
    case 3:
      return (void)DecodeRenew(body), 0;
    case 4:
      return (void)DecodeRenewReply(body), 0;
    case 5:
      return (void)DecodeList(body), 0;
    case 6:
      return (void)DecodeLookup(body), 0;
    case 7:
      if (const auto shares = DecodePrefixShares(body)) (void)Encode(*shares);
      return (void)DecodePlaces(body, size % 5), 0;
    case 8:
      return (void)DecodeOwners(body), 0;
    case 9:
      return (void)DecodeRemove(body), 0;
    case 10:
      if (const auto get = DecodeDataGet(body)) (void)Encode(*get);
      if (const auto put = DecodeDataPut(body)) (void)Encode(*put);
      return 0;
    case 11:
      (void)DecodeValues(body, size % 5);
      return (void)DecodeCodes(body, size % 5), 0;
    case 12:
      (void)DecodeAuthHello(body);
      (void)DecodeAuthChallenge(body);
      (void)DecodeLaneEnd(body);
      if (const auto pieces = DecodeLanePieces(body)) (void)Encode(*pieces);
      (void)DecodeProbe(body);
      return (void)DecodeProof(body), 0;
    case 13:
      return (void)DecodeReport(body), 0;
    case 14:
      (void)DecodeInventory(body);
      if (const auto reply = DecodeInventoryReply(body)) (void)Encode(*reply);
      return (void)DecodeCopy(body), 0;
    case 15:
      return (void)DecodeWatch(body), 0;
    case 20:
      if (const auto reply = DecodeShardSyncReply(body)) (void)Encode(*reply);
      if (const auto request = DecodeShardSync(body)) (void)Encode(*request);
      if (const auto page = DecodeShardPage(body)) (void)Encode(*page);
      (void)DecodeShardBar(body);
      (void)DecodeShardBarReply(body, size % 5);
      if (const auto find = DecodeShardFind(body)) (void)Encode(*find);
      if (const auto found = DecodeShardFindReply(body, size % 5)) (void)Encode(*found);
      return (void)DecodeShardPull(body), 0;
    case 16:
      return (void)DecodeRemovalsRequest(body), 0;
    case 17:
      if (const auto page = DecodeRemovalsPage(body)) (void)Encode(*page);
      return 0;
    case 18:
      return (void)DecodeListReply(body, size % 5), 0;
    default:
      (void)DecodeCount(body);
      (void)kvcove::rpc::ParseAddress({reinterpret_cast<const char*>(body.data()), body.size()}, 0);
      return 0;
  }
}
