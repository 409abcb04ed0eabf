// SPDX-License-Identifier: Apache-2.0
// Metrics of the master that follow from its MasterStat and Standings. The others are in
// server_stat.cc. docs/metrics.md lists each.
#pragma once

#include <span>
#include <utility>

#include "kvcove/base/metrics.h"
#include "kvcove/master/server/server.h"
#include "kvcove/wire/frame.h"

namespace kvcove::master {

// Calls whose durations, from the request to its answer, have a histogram.
inline constexpr std::pair<wire::Method, const char*> kTimedCalls[] = {
    {wire::Method::kLookup, "lookup"}, {wire::Method::kList, "list"},
    {wire::Method::kRenew, "renew"},   {wire::Method::kRegister, "register"},
    {wire::Method::kReset, "reset"},   {wire::Method::kRemoveEverywhere, "remove"},
    {wire::Method::kPrune, "prune"},   {wire::Method::kLocate, "locate"},
};

// Adds the metrics of each owner; `now_ns` by the master's clock.
void CollectOwners(Metrics& metrics, std::span<const wire::OwnerStat> owners,
                   const Standings& standings, std::int64_t now_ns);
// Adds the metrics of the directory, the control plane and the generations.
void CollectMaster(Metrics& metrics, const MasterStat& stat);

}  // namespace kvcove::master
