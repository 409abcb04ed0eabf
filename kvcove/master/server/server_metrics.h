// SPDX-License-Identifier: Apache-2.0
// The master's metrics, as `MasterServer` shows them. docs/operating.md explains each.
#pragma once

#include <span>
#include <utility>

#include "kvcove/base/metrics.h"
#include "kvcove/master/server/server.h"
#include "kvcove/wire/frame.h"

namespace kvcove::master {

// Calls whose durations are shown.
inline constexpr std::pair<wire::Method, const char*> kTimedCalls[] = {
    {wire::Method::kLookup, "lookup"}, {wire::Method::kList, "list"},
    {wire::Method::kRenew, "renew"},   {wire::Method::kRegister, "register"},
    {wire::Method::kReset, "reset"},   {wire::Method::kRemoveEverywhere, "remove"},
};

void CollectOwners(Metrics& metrics, std::span<const wire::OwnerStat> owners,
                   const Standings& standings, std::int64_t now_ns);
void CollectMaster(Metrics& metrics, const MasterStat& stat);

}  // namespace kvcove::master
